//! `ginlab affinity`: of recorded trees, and of this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{self, Record, ginlab, run};

#[track_caller]
fn records(args: &str) -> Vec<Record> {
    let done = run(ginlab(&format!("affinity {args} --csv -"))).expect(0);
    common::records(&done.stdout)
}

#[test]
fn each_gpu_of_a_p5_gets_its_four_efa_cards() {
    let rows = records("--from tests/fixtures/p5");
    assert_eq!(rows.len(), 8);
    let nics = |row: &Record| row["nics"].split(';').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rows[0]["gpu"], "0000:53:00.0");
    assert_eq!(nics(&rows[0]), ["0000:4f:00.0", "0000:50:00.0", "0000:51:00.0", "0000:52:00.0"]);
    assert_eq!(rows[7]["gpu"], "0000:ca:00.0");
    assert_eq!(nics(&rows[7]), ["0000:c6:00.0", "0000:c7:00.0", "0000:c8:00.0", "0000:c9:00.0"]);
    let mut all: Vec<String> = rows.iter().flat_map(nics).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 32, "every card is one GPU's");
    for row in &rows {
        assert!(row["nic_names"].split(';').all(|name| name.contains("Elastic Fabric Adapter")), "{row:?}");
        // A recorded tree knows nothing of this machine's driver.
        assert!(["ordinal", "dma_buf", "nvlinks", "gdrcopy"].iter().all(|column| row[*column].is_empty()), "{row:?}");
    }
    assert_eq!(rows[2]["ways"], "host;host;-;host;host;host;host;host");
}

/// A device of a sysfs tree below this root.
fn device(root: &Path, place: &str, files: &[(&str, &str)]) {
    let address = place.rsplit('/').next().unwrap();
    let folder = root.join("sys/devices").join(place);
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        if let Some(folders) = name.strip_suffix('/') {
            fs::create_dir_all(folder.join(folders)).unwrap();
        } else if *name == "driver" {
            symlink(Path::new("/sys/bus/pci/drivers").join(text), folder.join(name)).unwrap();
        } else {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }
    let links = root.join("sys/bus/pci/devices");
    fs::create_dir_all(&links).unwrap();
    symlink(&folder, links.join(address)).unwrap();
}

const GPU: [(&str, &str); 5] = [
    ("class", "0x030200"),
    ("vendor", "0x10de"),
    ("numa_node", "1"),
    ("local_cpulist", "48-95"),
    ("current_link_speed", "32.0 GT/s PCIe"),
];

#[test]
fn a_copy_of_sysfs() {
    let root = tempfile::tempdir().unwrap();
    let far = [("class", "0x030200"), ("vendor", "0x10de"), ("numa_node", "0")];
    device(root.path(), "pci0000:10/0000:10:01.0/0000:11:00.0", &[&GPU[..], &[("current_link_width", "16")]].concat());
    device(root.path(), "pci0000:10/0000:10:01.0/0000:12:00.0", &GPU);
    device(root.path(), "pci0000:10/0000:13:00.0", &GPU);
    device(root.path(), "pci0000:20/0000:20:01.0/0000:21:00.0", &far);
    let card = [("class", "0x020000"), ("vendor", "0x15b3"), ("driver", "mlx5_core"), ("infiniband/mlx5_0/", "")];
    device(root.path(), "pci0000:10/0000:10:01.0/0000:14:00.0", &card);
    let ethernet = [("class", "0x020000"), ("vendor", "0x1d0f"), ("driver", "ena"), ("net/eth0/", "")];
    device(root.path(), "pci0000:20/0000:20:01.0/0000:22:00.0", &ethernet);
    device(root.path(), "pci0000:20/0000:23:00.0", &[("class", "0x010802"), ("vendor", "0x1d0f")]);
    let rows = records(&format!("--from {}", root.path().display()));
    let column = |name: &str| rows.iter().map(|row| row[name].as_str()).collect::<Vec<_>>();
    assert_eq!(column("gpu"), ["0000:11:00.0", "0000:12:00.0", "0000:13:00.0", "0000:21:00.0"]);
    // Cards with RMA count where there are any; the third GPU shares a root with it and nothing below; the fourth is far.
    assert_eq!(column("nics"), ["0000:14:00.0", "0000:14:00.0", "0000:14:00.0", ""]);
    assert_eq!(column("nic_names"), ["mlx5_0", "mlx5_0", "mlx5_0", ""]);
    assert_eq!(column("nics_by"), ["switch", "switch", "root", ""]);
    assert_eq!(column("numa_node"), ["1", "1", "1", "0"]);
    assert_eq!(column("cores"), ["48-95", "48-95", "48-95", ""]);
    assert_eq!(column("pcie"), ["32.0 GT/s x16", "", "", ""]);
    assert_eq!(
        column("ways"),
        ["-;switch;root;nodes", "switch;-;root;nodes", "root;root;-;nodes", "nodes;nodes;nodes;-"]
    );
}

/// A p4d as its VM shows it: on each of four root buses two GPUs and an EFA card side by side, no bridge.
fn p4d(root: &Path, shared_bus: bool) {
    for (number, bus) in ["10", "20", "90", "a0"].into_iter().enumerate() {
        let node = [
            ("numa_node", if number < 2 { "0" } else { "1" }),
            ("local_cpulist", if number < 2 { "0-23,48-71" } else { "24-47,72-95" }),
        ];
        let link = [("max_link_speed", "16.0 GT/s PCIe"), ("max_link_width", "16")];
        let gpu = [&[("class", "0x030200"), ("vendor", "0x10de")], &node[..], &link].concat();
        let name = format!("infiniband/rdmap{number}s27/");
        let efa =
            [&[("class", "0x020000"), ("vendor", "0x1d0f"), ("driver", "efa"), (name.as_str(), "")], &node[..], &link]
                .concat();
        // Another kind of VM: every device on a root bus of its own, so that only the node is left.
        let place = |device: &str, number: usize| match shared_bus {
            true => format!("pci0000:{bus}/0000:{bus}:{device}.0"),
            false => format!("pci000{number}:{bus}/000{number}:{bus}:{device}.0"),
        };
        device(root, &place("1b", 1), &efa);
        device(root, &place("1c", 2), &gpu);
        device(root, &place("1d", 3), &gpu);
    }
}

#[test]
fn without_bridges_the_root_bus_counts() {
    let root = tempfile::tempdir().unwrap();
    p4d(root.path(), true);
    let rows = records(&format!("--from {}", root.path().display()));
    let nics: Vec<_> =
        rows.iter().map(|row| (row["gpu"].as_str(), row["nics"].as_str(), row["nics_by"].as_str())).collect();
    assert_eq!(nics.len(), 8);
    assert_eq!(nics[0], ("0000:10:1c.0", "0000:10:1b.0", "root"));
    assert_eq!(nics[1], ("0000:10:1d.0", "0000:10:1b.0", "root"));
    assert_eq!(nics[7], ("0000:a0:1d.0", "0000:a0:1b.0", "root"));
}

#[test]
fn without_a_common_bus_the_numa_node_counts() {
    let root = tempfile::tempdir().unwrap();
    p4d(root.path(), false);
    let rows = records(&format!("--from {}", root.path().display()));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        let expected = if row["numa_node"] == "0" { "0001:10:1b.0;0001:20:1b.0" } else { "0001:90:1b.0;0001:a0:1b.0" };
        assert_eq!((row["nics"].as_str(), row["nics_by"].as_str()), (expected, "host"), "{row:?}");
    }
}

#[test]
fn a_topology_file_for_nccl_reads_back() {
    let root = tempfile::tempdir().unwrap();
    p4d(root.path(), true);
    let p4d = root.path().display().to_string();
    let file = root.path().join("topo.xml").display().to_string();
    for from in ["tests/fixtures/p5", p4d.as_str()] {
        let written = records(&format!("--from {from} --nccl-topo {file}"));
        let read = records(&format!("--from {file}"));
        assert_eq!((read.len(), written.len()), (8, 8));
        for (read, written) in read.iter().zip(&written) {
            for column in ["gpu", "nics", "numa_node", "cores"] {
                assert_eq!(read[column], written[column], "{column} of {from}");
            }
            assert_eq!(read["nics_by"], "switch", "NCCL sees a bridge above both");
        }
    }
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.starts_with("<system version=\"1\">\n  <cpu numaid=\"0\" affinity=\"000000ff,ffff0000,00ffffff\">"),
        "{text}"
    );
    // What is there already is not half overwritten by what cannot be.
    let done = run(ginlab(&format!("affinity --from {file} --nccl-topo {p4d}/missing/topo.xml"))).expect(1);
    assert!(done.complaint().contains("missing"), "{}", done.complaint());
}

#[test]
fn a_file_that_is_no_topology_is_one_line_and_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("topo.xml");
    for (text, part) in [
        ("", "no XML"),
        ("<system version=\"1\"><cpu>", "no XML"),
        ("<system version=\"3\"/>", "version 3"),
        ("<html/>", "<html> in place of <system>"),
        ("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"here\"/></cpu></system>", "busid"),
    ] {
        fs::write(&file, text).unwrap();
        let done = run(ginlab(&format!("affinity --from {}", file.display()))).expect(2);
        assert!(done.complaint().contains(part) && done.complaint().contains("--from"), "{}", done.complaint());
    }
    // A topology without a GPU is none that NCCL could use.
    fs::write(&file, "<system version=\"1\"/>").unwrap();
    let done = run(ginlab(&format!("affinity --from {0} --nccl-topo {0}", file.display()))).expect(2);
    assert!(done.complaint().contains("no NVIDIA GPU"), "{}", done.complaint());
}

#[test]
fn table_and_document() {
    let done = run(ginlab("affinity --from tests/fixtures/p5")).expect(0);
    assert!(done.stdout.contains("way between") && done.stdout.starts_with("GPU"), "{}", done.stdout);
    let done = run(ginlab("affinity --from tests/fixtures/p5 --json -")).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(document["nics"].as_array().unwrap().iter().filter(|nic| nic["rma"] == true).count(), 32);
}

#[test]
fn this_machine_has_an_answer() {
    // Whatever is here: an answer, and valid JSON.
    let done = run(ginlab("affinity --json -")).expect(0);
    serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap();
}

#[test]
fn what_cannot_be_is_one_line_and_code_2() {
    for (args, part) in [
        ("--from /nonexistent", "lspci.txt"),
        ("--from tests/fixtures", "sys/bus/pci/devices"),
        ("--csv - --json -", "stdout"),
        ("--from tests/fixtures/p5 --nccl-topo -", "--nccl-topo -"),
    ] {
        let done = run(ginlab(&format!("affinity {args}"))).expect(2);
        assert!(done.complaint().contains(part), "{part}: {}", done.complaint());
        assert_eq!(done.stdout, "");
    }
}
