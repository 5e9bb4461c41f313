//! Tests of every format of `lspci`, which is parsed completely or rejected.
#![allow(clippy::unwrap_used)]

use super::super::PciKind;
use super::*;

/// Returns the addresses and kinds of the GPUs and NICs, with EFA devices marked, in order.
fn kinds(listing: &str) -> Vec<String> {
    let label = |(address, one): (&PciAddress, &LspciFunction)| {
        let kind = match one.kind(address)? {
            PciKind::Gpu => "gpu",
            PciKind::Nic if one.identity.is_efa() => "efa",
            PciKind::Nic => "nic",
        };
        Some(format!("{address} {kind}"))
    };
    lspci_devices(listing).unwrap().iter().filter_map(label).collect()
}

const P5: &str =
    "-+-[0000:cc]---00.0-[cd-d2]----00.0-[ce-d2]--+-00.0-[cf]----00.0  NVIDIA Corporation GH100 [H100 NVSwitch]
 |                                           \\-00.1-[d0]--
 +-[0001:bb]---00.0-[bc-cb]----00.0-[bd-cb]--+-00.0-[be]----00.0  Amazon.com, Inc. Elastic Network Adapter (ENA)
 |                                           +-01.0-[c6]----00.0  Amazon.com, Inc. Elastic Fabric Adapter (EFA)
 |                                           +-01.1-[c7]----00.0  Amazon.com, Inc. Device efa1
 |                                           \\-01.4-[ca]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 \\-[0000:00]-+-00.0  Intel Corporation 440FX
             \\-04.0  Amazon.com, Inc. NVMe EBS Controller
";

#[test]
fn bridges_and_root_buses_of_drawing_are_parsed() {
    assert_eq!(kinds(P5), ["0001:be:00.0 nic", "0001:c6:00.0 efa", "0001:c7:00.0 efa", "0001:ca:00.0 gpu"]);
    let devices = lspci_devices(P5).unwrap();
    assert_eq!(devices.len(), 7);
    let path = |address: &str| devices[&address.parse().unwrap()].path.clone().unwrap();
    assert_eq!(path("0001:ca:00.0"), "/sys/devices/pci0001:bb/0001:bb:00.0/0001:bc:00.0/0001:bd:01.4/0001:ca:00.0");
    assert_eq!(path("00:04.0"), "/sys/devices/pci0000:00/0000:00:04.0");
}

#[test]
fn functions_sharing_bus_are_all_found() {
    let dual = "-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Root Complex
           +-01.1-[01-02]----00.0-[02]--+-00.0  NVIDIA Corporation GB202 [GeForce RTX 5090] [10de:2b85]
           |                            \\-00.1  NVIDIA Corporation Device 22e8
           +-02.0
           \\-03.1-[03]--+-00.0  Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
                        \\-00.1  Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
";
    assert_eq!(kinds(dual), ["0000:02:00.0 gpu", "0000:03:00.0 nic", "0000:03:00.1 nic"]);
    // Versions without domains, and a tree that begins with the only device of bus 0.
    assert_eq!(
        kinds("-[00]-+-00.0  Intel Corporation\n      \\-05.0  NVIDIA Corporation TU104GL [Tesla T4]\n"),
        ["0000:00:05.0 gpu"]
    );
    assert_eq!(kinds("-[0000:00]---1e.0  NVIDIA Corporation TU104GL [Tesla T4]\n"), ["0000:00:1e.0 gpu"]);
    assert_eq!(kinds("-01.0-[05]----00.0  NVIDIA Corporation GA100 [A100]\n"), ["0000:05:00.0 gpu"]);
    assert_eq!(kinds("-[10000:e0]-+-06.0-[e1]----00.0  NVIDIA Corporation GA100\n"), ["10000:e1:00.0 gpu"]);
}

#[test]
fn lists_of_every_option_agree() {
    let expected = ["0000:ca:00.0 gpu", "0000:cb:00.0 efa", "0000:cc:00.0 nic"];
    let others = "00:00.0 Host bridge: Intel Corporation 440FX - 82441FX PMC [Natoma]\nca:00.1 Audio device: NVIDIA Corporation\n";
    for listing in [
        "ca:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\
         cb:00.0 Ethernet controller: Amazon.com, Inc. Device efa0\n\
         cc:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n",
        "0000:ca:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2330] (rev a1) (prog-if 00 [VGA controller])\n\
         0000:cb:00.0 Ethernet controller [0200]: Amazon.com, Inc. Elastic Fabric Adapter (EFA) [1d0f:efa2]\n\
         0000:cc:00.0 Network controller [0280]: Device [15b3:1021]\n",
        "ca:00.0 0302: 10de:2330 (rev a1)\ncb:00.0 0200: 1d0f:efa4\ncc:00.0 0207: 15b3:1021\n",
        "ca:00.0 Class 0302: Device 10de:2330\ncb:00.0 Class 0200: Device 1d0f:efa3\ncc:00.0 Class 0200: Device 8086:1592\n",
        "ca:00.0 \"3D controller\" \"NVIDIA Corporation\" \"GA100 [A100]\" -ra1 \"NVIDIA Corporation\" \"Device 1463\"\n\
         cb:00.0 \"Ethernet controller\" \"Amazon.com, Inc.\" \"Device efa0\" \"\" \"\"\n\
         cc:00.0 \"Ethernet controller [0200]\" \"Intel Corporation [8086]\" \"E810 [1592]\" -r02 \"\" \"\"\n",
        "Slot:\tca:00.0\nClass:\t3D controller [0302]\nVendor:\tNVIDIA Corporation [10de]\nDevice:\tGH100 [2330]\nRev:\ta1\n\n\
         Slot:\tcb:00.0\nClass:\tEthernet controller\nVendor:\tAmazon.com, Inc.\nDevice:\tDevice efa1\nNUMANode:\t1\n\n\
         Device:\tcc:00.0\nClass:\t0200\nVendor:\t15b3\nDevice:\t1021\n",
        "$ lspci -vvv\npcilib: sysfs_read_vpd: read failed\nca:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n\tSubsystem: x\n\
         \tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM\n\n\
         cb:00.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n\tNUMA node: 1\n\tKernel driver in use: efa\n\
         cc:00.0 Ethernet controller: Mellanox Technologies MT28841\n00: b3 15 19 10 06 04 10 00\n10: 0c 00 00 f0 01 00 00 00\n",
        "00:01.1/ca:00.0 3D controller: NVIDIA Corporation GH100\n00:02.1/cb:00.0 Ethernet controller: Amazon.com, Inc. Device efa1\n\
         00:03.1/cc:00.0 Ethernet controller: Broadcom Inc. BCM57508\n",
    ] {
        assert_eq!(kinds(listing), expected, "{listing}");
    }
    assert!(kinds(others).is_empty());
}

#[test]
fn paragraphs_state_node_driver_and_link() {
    let listing = "cb:00.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n\tNUMA node: 1\n\
                   \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (ok)\n\
                   \tKernel driver in use: efa\n";
    let devices = lspci_devices(listing).unwrap();
    let one = &devices[&"cb:00.0".parse().unwrap()];
    assert_eq!((one.numa_node, one.driver.as_deref()), (Some(1), Some("efa")));
    assert_eq!(one.best_link, Some(("32 GT/s PCIe".into(), "16".into())));
    assert_eq!(one.link, Some(("16 GT/s PCIe".into(), "8".into())));
    let path = lspci_devices("00:01.1/ca:00.0 3D controller: NVIDIA Corporation GH100\n").unwrap();
    assert_eq!(
        path[&"ca:00.0".parse().unwrap()].path.as_deref(),
        Some("/sys/devices/pci0000:00/0000:00:01.1/0000:ca:00.0")
    );
}

#[test]
fn two_listings_in_one_file_add_up() {
    let drawn = "-[0000:00]-+-05.0  NVIDIA Corporation Device 22a3\n           \\-06.0  Amazon.com, Inc. Device efa1\n";
    assert_eq!(kinds(drawn), ["0000:00:06.0 efa"]);
    let both = format!("{drawn}00:05.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330]\n");
    assert_eq!(kinds(&both), ["0000:00:05.0 gpu", "0000:00:06.0 efa"]);
}

#[test]
fn unreadable_dumps_are_rejected_in_one_line() {
    for (listing, part) in [
        ("", "no line is from `lspci`"),
        (
            "ca:00.0 3D controller: NVIDIA Corporation GH100\ncb:00.0 Ether",
            "line 2 is not a line of `lspci`, or is truncated",
        ),
        ("bash: lspci: command not found\n", "line 1"),
        ("-[0000:00]-+-00.0\n           \\-01.0\n", "the output of `lspci -t` names no devices"),
        ("-[0000:00]-+-00.0  10de:2330\n           \\-01.0  1d0f:efa0\n", "IDs without classes"),
        ("-[0000:00]-+-00.0  Intel Corporation\n   \\-01.0  NVIDIA Corporation GH100\n", "line 2"),
        ("-[0000:00]-+-00.0 NVIDIA Corporation GH100\n", "line 1"),
        ("00:01.1/00.0 3D controller: NVIDIA Corporation GH100\n", "line 1"),
        ("\tNUMA node: 1\n", "line 1"),
        ("-[0000:00]-+-00.0  NVIDIA Corporation GH100\n           +-01.0  Amazon.com, Inc. EFA\n", "it is truncated"),
    ] {
        let error = lspci_devices(listing).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{listing}: {error}");
    }
    let cut = "lrwxrwxrwx 1 root root 0 Oct 14 04:36 0000:4f:00.0 -> ../../../devices/pci0000:44/0000:44:00.0/0000:4f";
    assert!(pci_tree(cut).unwrap_err().contains("line 1"));
}

/// PowerShell writes a mark at the start of the file, and carriage returns.
#[test]
fn files_of_other_systems_parse() {
    let listing = "\u{feff}-[0000:00]-+-00.0  NVIDIA Corporation GH100 [10de:2330]\r\n           \\-01.0  Intel\r\n";
    assert_eq!(lspci_devices(listing).unwrap().len(), 2);
}

#[test]
fn sysfs_links_yield_tree_positions() {
    let listing = "total 0\ndrwxr-xr-x 2 root root 0 Oct 14 04:36 .\nlrwxrwxrwx 1 root root 0 Oct 14 04:36 \
                   0000:4f:00.0 -> ../../../devices/pci0000:44/0000:44:00.0/0000:4f:00.0\n";
    let tree = pci_tree(listing).unwrap();
    assert_eq!(tree.len(), 1);
    assert_eq!(tree[0].0.to_string(), "0000:4f:00.0");
    assert_eq!(tree[0].1, "/sys/devices/pci0000:44/0000:44:00.0/0000:4f:00.0");
}
