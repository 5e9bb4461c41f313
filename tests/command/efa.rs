//! `ginlab efa` for this machine, and for a dump of a p5.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{self, JobOutput, ListingRecord, clean, ginlab, run};

const P5: &str = "tests/fixtures/p5";

/// Returns the rows of the CSV on stdout, by column.
#[track_caller]
fn records(args: &str) -> Vec<ListingRecord> {
    let done = run(ginlab(&format!("efa {args} --csv -"))).expect(0);
    common::records(&done.stdout)
}

#[track_caller]
fn refused(args: &str, part: &str) {
    let done = run(ginlab(&format!("efa {args}"))).expect(2);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: ") && line.contains(part), "{part}: {line}");
    assert_eq!(done.stdout, "");
}

fn notes(done: &JobOutput) -> Vec<&str> {
    done.stderr.lines().filter_map(|line| line.strip_prefix("# note: ")).collect()
}

#[test]
fn p5_has_four_efa_domains_per_gpu() {
    let rows = records(&format!("--from {P5}"));
    let efa: Vec<_> = rows.iter().filter(|row| row["provider"] == "efa").collect();
    assert_eq!(efa.len(), 32);
    assert!(rows[..32].iter().all(|row| row["provider"] == "efa"), "EFA devices first");
    let mut gpus: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &efa {
        *gpus.entry(&row["gpu"]).or_default() += 1;
        for (column, value) in [
            ("rails", "network"),
            ("fabric", "efa"),
            ("link_gbits_s", "100.0"),
            ("numa_node", ""),
            ("rma_write", "true"),
            ("immediate_bytes", "4"),
            ("delivery_complete", "true"),
            ("max_message_bytes", "18446744073709551615"),
            ("mr_mode", "FI_MR_VIRT_ADDR;FI_MR_ALLOCATED;FI_MR_PROV_KEY;FI_MR_HMEM"),
            ("progress", "FI_PROGRESS_AUTO"),
            ("endpoint", "FI_EP_RDM"),
            ("driver", "efa"),
            ("link_state", "FI_LINK_UP"),
            ("mtu_bytes", "8760"),
            ("hidden", ""),
        ] {
            assert_eq!(row[column], value, "{column}");
        }
    }
    assert!(gpus.len() == 8 && gpus.values().all(|cards| *cards == 4), "{gpus:?}");
    let card = |row: &ListingRecord| ["domain", "address", "pci", "gpu"].map(|column| row[column].clone());
    assert_eq!(card(efa[0]), ["rdmap79s0-rdm", "fe80::8e7:efff:feee:e81d", "0000:4f:00.0", "0000:53:00.0"]);
    assert_eq!(card(efa[31]), ["rdmap201s0-rdm", "fe80::842:adff:fe7b:939f", "0000:c9:00.0", "0000:ca:00.0"]);

    let done = run(ginlab(&format!("efa --from {P5}"))).expect(0);
    assert!(notes(&done).contains(&"rails can be opened on 32 EFA domains"), "{}", done.stderr);
    assert!(notes(&done).contains(&"the default provider is efa"), "{}", done.stderr);
    assert_eq!(done.stdout.lines().filter(|line| line.starts_with("efa ")).count(), 32);
    assert!(done.stderr.lines().all(|line| !line.starts_with("# libfabric")), "nothing of this machine");
}

#[test]
fn dump_without_pci_leaves_gpus_empty() {
    let rows = records(&format!("--from {P5}/fi_info.yaml -p efa"));
    assert_eq!(rows.len(), 32);
    assert!(rows.iter().all(|row| row["gpu"].is_empty() && !row["pci"].is_empty()));
}

#[test]
fn hidden_entries_have_reasons() {
    let all = records(&format!("--from {P5} --all"));
    let shown = records(&format!("--from {P5}"));
    assert!(all.len() > shown.len() && shown.iter().all(|row| row["hidden"].is_empty()));
    assert_eq!(all.iter().filter(|row| row["hidden"].is_empty()).cloned().collect::<Vec<_>>(), shown);
    let hidden: Vec<_> = all.iter().filter(|row| !row["hidden"].is_empty()).collect();
    let datagrams = hidden.iter().find(|row| row["domain"] == "rdmap79s0-dgrm").unwrap();
    assert_eq!(datagrams["hidden"], "no reliable datagrams with RMA");
    let layered = hidden.iter().find(|row| row["provider"] == "tcp;ofi_rxm").unwrap();
    assert_eq!(layered["hidden"], "the same address by tcp");
    // A layered provider that is requested explicitly is not a duplicate.
    let asked = records(&format!("--from {P5} -p tcp;ofi_rxm"));
    assert!(!asked.is_empty() && asked.iter().all(|row| row["provider"] == "tcp;ofi_rxm"));
}

#[test]
fn json_and_csv_have_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::current_dir().unwrap().join(P5);
    let mut command = ginlab("efa --all --csv efa.csv --json - --from");
    command.arg(path).current_dir(folder.path());
    let done = run(command).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&document["schema"], &document["default_provider"]), (&1.into(), &"efa".into()));
    assert!(document["header"]["libfabric"].is_null() && document["header"]["hostname"].is_null());
    let domains = document["domains"].as_array().unwrap();
    let text = std::fs::read_to_string(folder.path().join("efa.csv")).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let columns: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(reader.into_records().count(), domains.len());
    // The order must also be the same. Therefore, the document's text is searched for the keys of its first row.
    let first = done.stdout.split("\"domains\": [").nth(1).unwrap();
    let lines = first.split('}').next().unwrap().lines();
    let keys: Vec<_> = lines.filter_map(|line| Some(line.trim().strip_prefix('"')?.split_once("\": ")?.0)).collect();
    assert_eq!(keys, columns);
    assert_eq!(domains[0]["link_gbits_s"], 100.0);
    assert_eq!(domains[0]["mr_mode"].as_array().unwrap().len(), 4);
    assert!(domains[0]["numa_node"].is_null());
    let leftovers: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(leftovers, ["efa.csv"]);
}

#[test]
fn this_machine_is_readable_without_efa() {
    let done = run(ginlab("efa")).expect(0);
    if !Path::new("/sys/class/infiniband").exists() {
        assert!(notes(&done).contains(&"no EFA device here"), "{}", done.stderr);
        assert!(
            notes(&done).contains(&"the default provider is tcp;ofi_rxm")
                || notes(&done).contains(&"the default provider is tcp"),
            "{}",
            done.stderr
        );
    }
    assert_eq!(done.complaints(), Vec::<&str>::new());
    let loopback = records("-p tcp").into_iter().find(|row| row["address"] == "127.0.0.1").unwrap();
    assert_eq!((loopback["domain"].as_str(), loopback["rails"].as_str()), ("lo", "local"));
    assert_eq!((loopback["rma_write"].as_str(), loopback["delivery_complete"].as_str()), ("true", "true"));
    assert!(loopback["link_gbits_s"].is_empty() && loopback["pci"].is_empty());
}

#[test]
fn saved_dump_matches_this_machine() {
    let mut fi_info = std::process::Command::new("fi_info");
    clean(&mut fi_info);
    let Ok(output) = fi_info.arg("-v").output() else { return common::skip("no fi_info") };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("fi_info.txt"), output.stdout).unwrap();
    let place = |row: &ListingRecord| {
        // A dump cannot contain results of queries. The address of shm, and of sm2 in libfabric 2.x, is the process id.
        let asked = ["delivery_complete", "hmem", "hidden", "rails", "numa_node", "gpu"];
        let mut row = row.clone();
        row.retain(|column, _| !asked.contains(&column.as_str()));
        if ["shm", "sm2"].contains(&row["provider"].as_str()) {
            row.remove("address");
        }
        row
    };
    let mut saved: Vec<_> = records(&format!("--all --from {}", folder.path().display())).iter().map(place).collect();
    let mut here: Vec<_> = records("--all").iter().map(place).collect();
    saved.sort();
    here.sort();
    assert_eq!(saved, here);
}

#[test]
fn invalid_options_print_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    refused("--from missing", "missing: No such file or directory");
    refused(&format!("--from {}", folder.path().display()), "the directory has neither fi_info.yaml nor fi_info.txt");
    refused("--from Cargo.toml", "not a dump of `fi_info -v`");
    refused(&format!("--from {}", file("empty", "")), "not a dump of `fi_info -v`");
    refused(&format!("--from {}", file("short", "provider: tcp\n    fabric: lo\n")), "short form");
    let whole = std::fs::read_to_string(format!("{P5}/fi_info.yaml")).unwrap();
    refused(
        &format!("--from {}", file("cut", &whole[..4000])),
        "the entry at line 94 has no prov_name: is the dump truncated?",
    );
    refused(&format!("--from {P5} -p infinity"), "unknown provider \"infinity\"; available: efa, psm3, shm, tcp");
    refused("-p infinity", "unknown provider \"infinity\"; available: ");
    refused("--csv - --json -", "cannot both go to stdout");
    let done = run(ginlab(&format!("efa --csv {}/a.csv --json missing/b.json", folder.path().display()))).expect(1);
    assert!(done.complaint().contains("cannot write JSON to missing/b.json"), "{}", done.stderr);
    assert!(!folder.path().join("a.csv").exists());
}
