//! `ginlab doctor` for a recorded p5, for this machine, and for the ranks of two nodes.

use crate::common::lab::{Lab, command};
use crate::common::{ListingRecord, ProcessGroup, ginlab, records, run, skip};

const P5: &str = "doctor --from tests/fixtures/p5 --instance p5.48xlarge";

fn found<'a>(rows: &'a [ListingRecord], check: &str) -> (&'a str, &'a str) {
    let row = rows.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no {check}"));
    (&row["state"], &row["found"])
}

#[test]
fn recorded_p5_has_32_efa_devices() {
    let done = run(ginlab(&format!("{P5} --csv -"))).expect(0);
    let rows = records(&done.stdout);
    assert_eq!(rows.len(), 26);
    assert_eq!(found(&rows, "efa-devices"), ("ok", "32 EFA devices, 32 expected"));
    assert_eq!(found(&rows, "libfabric"), ("ok", "libfabric recorded: RDM domains 32 of efa"));
    assert!(found(&rows, "rma").1.contains("GPU memory (FI_HMEM) claimed"));
    // A check without a recording must not pass.
    for check in ["memlock", "efa-driver", "efa-links", "gpu", "xid", "gdrcopy", "network", "counters", "smoke"] {
        assert_eq!(found(&rows, check).0, "skipped", "{check}");
    }
    let lines = run(ginlab(P5)).expect(0).stdout;
    assert_eq!(lines.lines().count(), 26);
    assert!(lines.contains("\nok       efa-devices   32 EFA devices, 32 expected\n"), "{lines}");
}

#[test]
fn exit_code_matches_worst_finding() {
    let done = run(ginlab(&format!("{P5} --cards 33 --only efa-devices,memlock --json -"))).expect(3);
    assert_eq!(done.complaint(), "ginlab: 1 check failed: efa-devices on recorded");
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["worst"], "fail");
    let fail = &document["findings"].as_array().unwrap()[1];
    assert_eq!((&fail["check"], &fail["state"]), (&"efa-devices".into(), &"fail".into()));
    assert!(fail["mend"].as_str().unwrap().contains("--wait"));
    // HyperPod's name of the same instance.
    run(ginlab("doctor --from tests/fixtures/p5 --instance ml.p5.48xlarge --only efa-devices --strict")).expect(0);
    // For an unknown instance, an unexpected number of NICs is a warning.
    let unknown = "doctor --from tests/fixtures/p5 --only efa-devices";
    assert!(run(ginlab(unknown)).expect(0).stdout.starts_with("warn     efa-devices"));
    run(ginlab(&format!("{unknown} --strict"))).expect(3);
}

/// The document of a gate has every figure with its limit. Nothing was recorded of the GPUs' memory: it does not pass.
#[test]
fn gate_reports_figures_with_limits() {
    let done = run(ginlab(&format!("{P5} --gate --json -"))).expect(3);
    assert!(done.complaint().contains("gate on recorded"), "{}", done.stderr);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&document["instance"]["type"], &document["schema"]), (&"p5.48xlarge".into(), &2.into()));
    let figures = document["figures"].as_array().unwrap();
    let figure = |name: &str| figures.iter().find(|figure| figure["name"] == name).unwrap();
    for (name, value, state) in [("gpus", 8.0, "ok"), ("efa_devices", 32.0, "ok")] {
        let figure = figure(name);
        assert_eq!((&figure["value"], &figure["state"]), (&value.into(), &state.into()), "{figure}");
        assert_eq!(figure["limit"]["at_least"], value);
    }
    assert_eq!(
        (&figure("ecc_uncorrected")["value"], &figure("ecc_uncorrected")["state"]),
        (&serde_json::Value::Null, &"skipped".into())
    );
    let gate = document["findings"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&gate["check"], &gate["state"], &gate["severity"]),
        (&"gate".into(), &"fail".into(), &"configure".into())
    );
}

/// On a machine without GPU and NIC, the last line reports what the machine can run, and the command for it.
#[test]
fn machine_without_gpu_and_nic_gets_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("sys/bus/pci/devices")).unwrap();
    let doctor = format!("doctor --from {}", folder.path().display());
    let lines = run(ginlab(&doctor)).expect(0).stdout;
    let last = lines.lines().last().unwrap();
    assert!(
        last.starts_with("fit only for the emulated device (no GPU, no EFA device). Run: ginlab proxy --np 2"),
        "{last}"
    );
    let document: serde_json::Value =
        serde_json::from_str(&run(ginlab(&format!("{doctor} --json -"))).expect(0).stdout).unwrap();
    assert_eq!(document["fit"], last);
    assert!(!run(ginlab(&format!("{doctor} --only memlock"))).expect(0).stdout.contains("fit for"));
    let p5 = run(ginlab(P5)).expect(0).stdout;
    assert!(!p5.contains("fit for"), "{p5}");
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("--only all", "unknown check \"all\": expected one of memlock, memory,"),
        ("--from Cargo.toml", "not a recorded machine"),
        ("--instance p5.48xlagre", "unknown instance type \"p5.48xlagre\": expected one of p4d.24xlarge,"),
        ("--rails 4", "--peers"),
        ("--rates", "--peers"),
        ("--peers --rates --bytes 0", "expected a size above 0, such as 64M"),
        ("--at-least 0", "invalid share \"0\": expected a percentage above 0 and up to 100"),
        ("--from tests/fixtures/p5 --gate", "--gate: nothing is known about the instance type unknown"),
        ("--csv - --json -", "cannot both go to stdout"),
    ] {
        let done = run(ginlab(&format!("doctor {args}"))).expect(2);
        assert!(done.stderr.contains(part) && done.stdout.is_empty(), "{args}: {}", done.stderr);
    }
}

#[test]
fn this_machine_writes_to_itself() {
    let done = run(ginlab("doctor --only smoke,efa-devices,memlock -d emulated -p tcp --csv -")).expect(0);
    let rows = records(&done.stdout);
    assert_eq!(found(&rows, "smoke"), ("ok", "written to itself and verified: lo, proxy"));
    let done = run(ginlab("doctor --only smoke --require-efa -d emulated -p nothing --csv -")).expect(3);
    let rows = records(&done.stdout);
    assert!(found(&rows, "smoke").1.contains("unknown provider \"nothing\""), "{}", done.stdout);
}

/// The trials and the two ranks do not fall back to the emulated device with -d gpu.
#[test]
fn smoke_test_with_gpu_needs_one() {
    if ginlab::cuda::visible_gpus().is_ok_and(|gpus| !gpus.is_empty()) {
        return skip("there is a GPU");
    }
    let done = run(ginlab("doctor --only smoke -d gpu -p tcp --csv -")).expect(3);
    let rows = records(&done.stdout);
    assert!(found(&rows, "smoke").0 == "fail" && found(&rows, "smoke").1.starts_with("GPU 0: "), "{}", done.stdout);
}

#[test]
fn smoke_test_runs_without_temporary_directory() {
    let mut command = ginlab("doctor --only smoke -d emulated -p tcp --csv -");
    command.env("TMPDIR", "/nonexistent").env_remove("HOME").env_remove("XDG_RUNTIME_DIR");
    let rows = records(&run(command).expect(0).stdout);
    assert_eq!(found(&rows, "smoke"), ("ok", "written to itself and verified: lo, proxy"));
}

#[test]
fn recorded_devices_are_counted_by_id() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "lspci.txt",
        "-[0000:20]-+-01.0  Amazon.com, Inc. Elastic Network Adapter (ENA)\n           \\-1b.0  Amazon.com, Inc. Device efa0\n",
    );
    let doctor =
        format!("doctor --from {} --instance p4d.24xlarge --only efa-devices --csv -", folder.path().display());
    let rows = records(&run(ginlab(&doctor)).expect(3).stdout);
    assert_eq!(found(&rows, "efa-devices"), ("fail", "1 of 4 EFA devices of a p4d.24xlarge"));
    // A file that cannot be read completely must not be treated as a machine without NICs.
    write("lspci.txt", "20:1b.0 Ethernet controller: Amazon.com, Inc. Device efa0\n20:1c.0 3D con");
    let done = run(ginlab(&doctor)).expect(2);
    assert!(done.complaint().contains("lspci.txt: line 2"), "{}", done.complaint());
}

#[test]
fn unreachable_peers_are_reported_by_rail() {
    let Some(lab) = Lab::up("--rails 2 --rate none") else { return };
    let line = "doctor --peers --rails 2 -p tcp -d emulated --only network -t 3 --csv -";
    let both = || {
        let (first, second) = (ProcessGroup::start(lab.ginlab(0, line)), ProcessGroup::start(lab.ginlab(1, line)));
        (first.finish(), second.finish())
    };
    let (first, second) = both();
    second.expect(0);
    let rows = records(&first.expect(0).stdout);
    assert_eq!(found(&rows, "peers-rails"), ("ok", "2 ranks, 2 rails: writes to every peer verified"));
    assert_eq!(found(&rows, "peers-versions").0, "ok");
    assert_eq!(found(&rows, "peers-clocks").0, "ok");
    assert_eq!(rows.iter().filter(|row| row["check"] == "network").count(), 2, "each node looks for itself");
    // Replies of the second node to the first node's second rail are lost.
    command(&format!("ip -n {} route add blackhole 10.99.1.1/32", lab.namespace(1))).unwrap();
    let (first, _) = both();
    let first = first.expect(3);
    let rows = records(&first.stdout);
    let (state, text) = found(&rows, "peers-rails");
    assert!(state == "fail" && text.contains("over tcp") && text.contains(":rail1 (rail "), "{text}");
    assert!(first.complaint().contains("peers-rails on all"), "{}", first.stderr);
}
