//! `ginlab affinity`, for recorded trees and for this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{self, ListingRecord, ginlab, run};

#[track_caller]
fn records(args: &str) -> Vec<ListingRecord> {
    let done = run(ginlab(&format!("affinity {args} --csv -"))).expect(0);
    common::records(&done.stdout)
}

#[test]
fn p5_gpus_have_four_efa_devices_each() {
    let rows = records("--from tests/fixtures/p5");
    assert_eq!(rows.len(), 8);
    let nics = |row: &ListingRecord| row["nics"].split(';').map(str::to_owned).collect::<Vec<_>>();
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
        // A recorded tree contains nothing about this machine's driver.
        assert!(["ordinal", "dma_buf", "nvlinks", "gdrcopy"].iter().all(|column| row[*column].is_empty()), "{row:?}");
    }
    assert_eq!(rows[2]["ways"], "host;host;-;host;host;host;host;host");
}

/// Creates a device of a sysfs tree below `root`.
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
fn copy_of_sysfs_is_readable() {
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
    // If NICs with RMA exist, only they are considered. The third GPU shares only a root complex with it; the fourth is
    // on another node.
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

/// Creates the tree of a p4d as its VM shows it. Each of four root buses has two GPUs and an EFA device, without a
/// bridge.
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
        // In another kind of VM, every device is on its own root bus, so only the NUMA node relates the devices.
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
fn nearness_uses_root_bus_without_bridges() {
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
fn nearness_uses_numa_node_without_common_bus() {
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
fn nccl_topology_file_round_trips() {
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
    // An existing file is not partially overwritten if the new one cannot be written.
    let done = run(ginlab(&format!("affinity --from {file} --nccl-topo {p4d}/missing/topo.xml"))).expect(1);
    assert!(done.complaint().contains("missing"), "{}", done.complaint());
}

/// Creates a directory with these listings.
fn listings(lspci: &str, links: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("lspci.txt"), lspci).unwrap();
    if !links.is_empty() {
        fs::write(folder.path().join("ls_sys_bus_pci_devices.txt"), links).unwrap();
    }
    folder
}

#[test]
fn truncated_listings_are_rejected() {
    let p4d = "-+-[0000:20]-+-01.0  Amazon.com, Inc. Elastic Network Adapter (ENA)
 |           +-1b.0  Amazon.com, Inc. Device efa0
 |           +-1c.0  NVIDIA Corporation GA100 [A100 SXM4 40GB]
 |           \\-1d.0  NVIDIA Corporation GA100 [A100 SXM4 40GB]
 \\-[0001:20]-+-00.0  Intel Corporation 440FX
             +-1b.0  Amazon.com, Inc. Elastic Fabric Adapter (EFA)
             +-1c.0  NVIDIA Corporation GA100 [A100 SXM4 40GB]
             \\-1c.1  NVIDIA Corporation GA100 High Definition Audio Controller
";
    let folder = listings(p4d, "");
    let from = format!("--from {}", folder.path().display());
    let rows = records(&from);
    let near: Vec<_> = rows.iter().map(|row| (row["gpu"].as_str(), row["nics"].as_str())).collect();
    let expected =
        [("0000:20:1c.0", "0000:20:1b.0"), ("0000:20:1d.0", "0000:20:1b.0"), ("0001:20:1c.0", "0001:20:1b.0")];
    assert_eq!(near, expected);
    // Devices of several domains have their full addresses as headings.
    let table = run(ginlab(&format!("affinity {from}"))).expect(0).stdout;
    let headings = table.lines().find(|line| line.starts_with("way between")).unwrap();
    assert!(headings.contains("0000:20:1c.0") && headings.contains("0001:20:1c.0"), "{table}");
    // This listing has no bridges and lacks the location of a NIC that it names.
    let link = "l 1 root root 0 Jan 1 00:00 0000:20:1c.0 -> ../../../devices/pci0000:20/0000:20:1c.0\n";
    let folder = listings(
        "20:1c.0 3D controller: NVIDIA Corporation\n20:1b.0 Ethernet controller: Amazon.com, Inc. Device efa0\n",
        link,
    );
    let done = run(ginlab(&format!("affinity --from {}", folder.path().display()))).expect(2);
    assert!(done.complaint().contains("0000:20:1b.0 of lspci.txt has no line in"), "{}", done.complaint());
}

#[test]
fn topology_without_kinds_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("topo.xml");
    let bare = "<pci busid=\"0000:45:00.0\"><pci busid=\"0000:4f:00.0\"/><pci busid=\"0000:53:00.0\"/></pci>";
    fs::write(&file, format!("<system version=\"1\"><cpu numaid=\"0\">{bare}</cpu></system>")).unwrap();
    let done = run(ginlab(&format!("affinity --from {}", file.display()))).expect(2);
    assert!(done.complaint().contains("have no class: NCCL queries the machine"), "{}", done.complaint());
    let gpu = "<pci busid=\"0000:54:00.0\" class=\"0x030200\"/>";
    fs::write(&file, format!("<system version=\"1\"><cpu numaid=\"0\">{bare}{gpu}</cpu></system>")).unwrap();
    let done = run(ginlab(&format!("affinity --from {}", file.display()))).expect(0);
    assert!(done.stderr.contains("have no class: NCCL queries the machine"), "{}", done.stderr);
}

#[test]
fn nic_without_numa_node_is_placed_near_gpus() {
    let root = tempfile::tempdir().unwrap();
    device(root.path(), "pci0000:00/0000:00:1b.0", &GPU);
    let card = [("class", "0x020000"), ("vendor", "0x1d0f"), ("device", "0xefa1"), ("numa_node", "-1")];
    device(root.path(), "pci0000:10/0000:10:15.0", &card);
    let file = root.path().join("topo.xml");
    records(&format!("--from {} --nccl-topo {}", root.path().display(), file.display()));
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains("numaid=\"-1\"") && text.matches("<cpu ").count() == 1, "{text}");
}

#[test]
fn invalid_topology_file_prints_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("topo.xml");
    for (text, part) in [
        ("", "invalid XML"),
        ("<system version=\"1\"><cpu>", "invalid XML"),
        ("<system version=\"3\"/>", "version 3"),
        ("<html/>", "<html> instead of <system>"),
        ("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"here\"/></cpu></system>", "busid"),
    ] {
        fs::write(&file, text).unwrap();
        let done = run(ginlab(&format!("affinity --from {}", file.display()))).expect(2);
        assert!(done.complaint().contains(part) && done.complaint().contains("--from"), "{}", done.complaint());
    }
    // A topology without a GPU is useless for NCCL.
    fs::write(&file, "<system version=\"1\"/>").unwrap();
    let done = run(ginlab(&format!("affinity --from {0} --nccl-topo {0}", file.display()))).expect(2);
    assert!(done.complaint().contains("no NVIDIA GPU"), "{}", done.complaint());
}

#[test]
fn table_and_document_agree() {
    let done = run(ginlab("affinity --from tests/fixtures/p5")).expect(0);
    assert!(done.stdout.contains("way between") && done.stdout.starts_with("GPU"), "{}", done.stdout);
    let done = run(ginlab("affinity --from tests/fixtures/p5 --json -")).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(document["nics"].as_array().unwrap().iter().filter(|nic| nic["rma"] == true).count(), 32);
}

#[test]
fn this_machine_is_readable() {
    // The command succeeds and prints valid JSON on any machine.
    let done = run(ginlab("affinity --json -")).expect(0);
    serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap();
}

#[test]
fn invalid_options_print_one_line() {
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
