//! Tests that trees survive a round trip through NCCL's format.
#![allow(clippy::unwrap_used)]

use super::write::mask_of_cores;
use super::*;
use crate::{PciPath, near};
use proptest::prelude::*;

/// Relevant properties of a GPU: address, node, cores, nearest NICs.
type Fact = (String, Option<u32>, Option<String>, Vec<String>);

fn facts(tree: &Tree) -> Vec<Fact> {
    let cards = |nics: &[&PciFunction]| nics.iter().map(|nic| nic.address.to_string()).collect();
    let fact = |near: crate::Near<'_>| {
        (near.gpu.address.to_string(), near.gpu.numa_node, near.gpu.cores.clone(), cards(&near.nics))
    };
    near(tree).into_iter().map(fact).collect()
}

#[test]
fn p5_topology_round_trips_through_nccl() {
    let mut p5 = Tree::recorded(Path::new("../../tests/fixtures/p5")).unwrap();
    let text = write(&p5);
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&p5));
    assert_eq!(back.of(PciKind::Nic).count(), 32);
    // One bridge per GPU. NCCL counts the bridges in between.
    assert_eq!(text.matches("0x060400").count(), 8, "{text}");
    assert!(text.contains("<cpu numaid=\"-1\">"), "{text}");
    // With the additional properties from sysfs.
    for function in &mut p5.functions {
        let second = function.address.bus >= 0x88;
        function.numa_node = Some(second.into());
        function.cores = Some(if second { "48-95,144-191" } else { "0-47,96-143" }.into());
        function.best_link = Some(("32.0 GT/s PCIe".into(), "16".into()));
    }
    let text = write(&p5);
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&p5));
    assert_eq!(text.matches("<cpu ").count(), 2);
    assert!(
        text.contains(
            "<pci busid=\"0000:53:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>"
        )
    );
    assert!(back.functions.iter().all(|function| function.best_link.is_some()));
}

#[test]
fn sibling_devices_get_bridge_for_nccl() {
    let text = write(&p4d());
    assert_eq!(text.matches("busid=\"ffff:ff:").count(), 2, "{text}");
    assert!(text.contains("<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\""), "{text}");
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&p4d()));
    assert!(near(&p4d()).iter().all(|near| near.way == Some(PciPath::Root)));
    assert!(near(&back).iter().all(|near| near.way == Some(PciPath::Switch)));
}

/// Returns two root buses of a p4d as its VM shows them: GPUs and an EFA device on the same bus, without bridges.
fn p4d() -> Tree {
    let device = |kind, bus: u8, device: u8| PciFunction {
        address: PciAddress { domain: 0, bus, device, function: 0 },
        kind,
        name: String::new(),
        driver: None,
        rma: kind == PciKind::Nic,
        efa: false,
        path: format!("/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:{device:02x}.0"),
        numa_node: Some(0),
        cores: Some("0-23".into()),
        link: Some(("Unknown".into(), "0".into())),
        best_link: (kind == PciKind::Gpu).then(|| ("16.0 GT/s PCIe".into(), "16".into())),
    };
    let of_bus =
        |bus| [device(PciKind::Nic, bus, 0x1b), device(PciKind::Gpu, bus, 0x1c), device(PciKind::Gpu, bus, 0x1d)];
    Tree::sorted([of_bus(0x10), of_bus(0x20)].concat())
}

#[test]
fn nccl_written_topology_parses() {
    let text = r#"<system version="1">
  <cpu host_hash="0x1" numaid="1" affinity="ffffffff,00000000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:45:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:53:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:cf:00.0" count="4" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:4f:00.0" class="0x020000" vendor="0x1d0f" device="0xefa1" link_speed="" link_width="0">
        <nic><net name="rdmap79s0" dev="0" speed="100000" guid="0x1" gdr="1"/></nic>
      </pci>
      <pci busid="0000:47:00.0" class="0x020000" vendor="0x1d0f" device="0xec20"><nic><net name="eth0" gdr="0"/></nic></pci>
    </pci>
    <nic><net name="virtual"/></nic>
  </cpu>
</system>"#;
    let tree = parse(text).unwrap();
    assert_eq!(facts(&tree), [("0000:53:00.0".into(), Some(1), Some("32-63".into()), vec!["0000:4f:00.0".into()])]);
    let names: Vec<_> =
        tree.of(PciKind::Nic).map(|nic| (nic.name.as_str(), nic.rma, nic.best_link.is_some())).collect();
    assert_eq!(names, [("eth0", false, false), ("rdmap79s0", true, false)]);
}

#[test]
fn invalid_topologies_are_reported_in_one_line() {
    let cpu = |inside: &str| format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
    for (text, part) in [
        (String::new(), "invalid XML"),
        ("<system version=\"1\"".into(), "invalid XML"),
        ("<svg/>".into(), "<svg> instead of <system>"),
        ("<system/>".into(), "version (none)"),
        ("<system version=\"2\"/>".into(), "version 2"),
        (cpu("<pci/>"), "without busid"),
        (cpu("<pci busid=\"10\"/>"), "invalid PCI address"),
        (cpu("<pci busid=\"0000:10:1c.0\" class=\"0x02\"/><pci busid=\"0000:10:1c.0\" class=\"0x02\"/>"), "twice"),
        ("<system version=\"1\"><pci busid=\"0000:10:1c.0\" class=\"0x02\"/></system>".into(), "not below a <cpu>"),
        (
            cpu("<pci busid=\"0000:10:1c.0\" class=\"0x02\"/>").replace("numaid", "affinity=\"xyz\" numaid"),
            "expected a mask",
        ),
        (
            cpu("<pci busid=\"0000:10:1c.0\" class=\"0x02\"/>").replace("numaid=\"0", "numaid=\"x"),
            "expected the number of a NUMA node",
        ),
        (cpu("<pci busid=\"0000:10:1c.0\" class=\"gpu\"/>"), "invalid class \"gpu\" of 0000:10:1c.0"),
        ("<!DOCTYPE a [<!ENTITY b \"&b;\">]><system version=\"1\">&b;</system>".into(), "invalid XML"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
    }
}

/// NCCL 2.22 and later find no path from a `<cpu numaid="-1">` to the GPUs below other CPUs.
#[test]
fn nic_without_node_is_below_cpu_with_gpus() {
    let mut tree = p4d();
    let unknown = |function: &mut PciFunction| (function.numa_node, function.cores) = (None, None);
    for function in &mut tree.functions {
        match (function.kind, function.address.bus) {
            (PciKind::Nic, 0x10) => unknown(function),
            (_, 0x20) => function.numa_node = Some(1),
            _ => {}
        }
    }
    // A NIC on a root bus without any known node.
    let mut alone = tree.functions[0].clone();
    alone.address.bus = 0x30;
    alone.path = "/sys/devices/pci0000:30/0000:30:1b.0".into();
    unknown(&mut alone);
    tree.functions.push(alone);
    let text = write(&tree);
    assert!(!text.contains("numaid=\"-1\"") && text.matches("<cpu ").count() == 2, "{text}");
    let cpus: Vec<&str> = text.split("<cpu ").collect();
    assert!(
        cpus[1].contains("numaid=\"0\"") && cpus[1].contains("0000:10:1b.0") && cpus[1].contains("0000:30:1b.0"),
        "{text}"
    );
    assert!(cpus[1..].iter().all(|cpu| cpu.contains("0x030200")), "every <cpu> has GPUs: {text}");
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&tree));
    // Without any known node there is a single <cpu>, as in NCCL's own files.
    tree.functions.iter_mut().for_each(unknown);
    let text = write(&tree);
    assert!(text.contains("<cpu numaid=\"-1\">") && text.matches("<cpu ").count() == 1, "{text}");
    assert!(!text.contains(UNPLACED), "{text}");
}

#[test]
fn facts_missing_from_file_are_stated() {
    let cpu = |inside: &str| format!("<system version=\"1\"><cpu numaid=\"0\" affinity=\"\">{inside}</cpu></system>");
    let bare = r#"<pci busid="0000:45:00.0"><pci busid="0000:4f:00.0"/><pci busid="0000:53:00.0" class=""/></pci>"#;
    let error = parse(&cpu(bare)).unwrap_err();
    assert!(error.starts_with("2 devices (0000:4f:00.0 and more) have no class"), "{error}");
    // Without a class, the IDs and NCCL's child elements determine the kind.
    let known = r#"<pci busid="0001:50:00.0" vendor="0x1d0f" device="0xefa1"/><pci busid="51:00.0" vendor="15b3"/>
        <pci busid="00000002:53:00.0"><gpu dev="0"/></pci><pci busid="0000:54:00.0"><nic><net name="x"/></nic></pci>
        <pci busid="0000:55:00.0" class="0x030000" vendor="0x1a03"/><pci busid="0000:56:00.0" class="0x068000" vendor="0x10de"/>"#;
    let tree = parse(&cpu(&format!("{known}<pci busid=\"0000:57:00.0\" vendor=\"0x10de\"/>"))).unwrap();
    let found: Vec<_> = tree.functions.iter().map(|one| (one.address.to_string(), one.kind, one.rma)).collect();
    assert_eq!(
        found,
        [
            ("0000:51:00.0".into(), PciKind::Nic, true),
            ("0000:54:00.0".into(), PciKind::Nic, false),
            ("0001:50:00.0".into(), PciKind::Nic, true),
            ("0002:53:00.0".into(), PciKind::Gpu, false),
        ]
    );
    assert_eq!(tree.lacks.len(), 1, "{:?}", tree.lacks);
    assert!(tree.lacks[0].contains("1 devices (0000:57:00.0)"), "{:?}", tree.lacks);
    // NCCL ignores unknown elements.
    let gpu = r#"<pci busid="0000:53:00.0" class="0x030200"/>"#;
    let tree = parse(&cpu(&format!("<foo><pci busid=\"0000:54:00.0\" class=\"0x030200\"/></foo>{gpu}"))).unwrap();
    assert_eq!(tree.functions.len(), 1);
    assert!(tree.lacks[0].starts_with("<pci> below <foo> is ignored"), "{:?}", tree.lacks);
    let tree = parse(&cpu(gpu).replace("numaid=\"0\"", "host_hash=\"0x1\"")).unwrap();
    assert_eq!((tree.functions[0].numa_node, tree.lacks.len()), (None, 1));
    let tree = parse(&cpu(gpu).replace("numaid=\"0\"", "numaid=\"-1\"")).unwrap();
    assert_eq!((tree.functions[0].numa_node, tree.lacks.len()), (None, 0));
}

#[test]
fn file_of_several_hosts_is_refused() {
    let cpu = |hash: &str| {
        format!("<cpu host_hash=\"{hash}\" numaid=\"0\"><pci busid=\"0000:53:00.0\" class=\"0x030200\"/></cpu>")
    };
    let error = parse(&format!("<system version=\"1\">{}{}</system>", cpu("0x1"), cpu("0x2"))).unwrap_err();
    assert!(error.starts_with("the file has 2 hosts (host_hash 0x1, 0x2)") && !error.contains('\n'), "{error}");
    let one = format!("<system version=\"1\">{}{}</system>", cpu("0x1"), cpu("0x1").replace(":53:", ":54:"));
    assert_eq!(parse(&one).unwrap().functions.len(), 2);
}

/// Returns a device on a root bus, below a port of it, or below a switch below that port.
fn anywhere((root, port, depth, is_gpu): (u8, u8, u8, bool), number: u8) -> PciFunction {
    // A device on a root bus has the number of that bus.
    let (bus, device) = if depth == 0 { (root, 0x10 + number) } else { (0x80 + number, 0) };
    let address = PciAddress { domain: 0, bus, device, function: 0 };
    let mut path = format!("/sys/devices/pci0000:{root:02x}");
    if depth > 0 {
        path += &format!("/0000:{root:02x}:{:02x}.0", port + 1);
    }
    if depth > 1 {
        path += &format!("/0000:{:02x}:00.0", 0x40 + root * 4 + port);
    }
    PciFunction {
        address,
        kind: if is_gpu { PciKind::Gpu } else { PciKind::Nic },
        name: String::new(),
        driver: None,
        rma: !is_gpu,
        efa: false,
        path: format!("{path}/{address}"),
        numa_node: (root < 2).then_some(u32::from(root)),
        cores: (root == 1).then(|| "8-15".to_owned()),
        link: None,
        best_link: None,
    }
}

proptest! {
    /// The nearest NICs stay the same for any tree.
    #[test]
    fn trees_go_to_nccl_and_back(
        devices in prop::collection::vec((0u8..3, 0u8..3, 0u8..3, any::<bool>()), 0..12),
    ) {
        let devices = devices.into_iter().enumerate().map(|(number, place)| anywhere(place, number as u8));
        let tree = Tree::sorted(devices.collect());
        let text = write(&tree);
        let back = parse(&text).unwrap();
        prop_assert_eq!(facts(&back), facts(&tree), "{}", text);
    }

    #[test]
    fn masks_go_both_ways(cores in prop::collection::btree_set(0usize..600, 1..60)) {
        let cores: Vec<usize> = cores.into_iter().collect();
        let mask = mask_of_cores(&cores);
        prop_assert_eq!(cores_of_mask(&mask.replace(',', "")), Some(cores.clone()));
        prop_assert_eq!(cores_of_mask(&mask), Some(cores));
    }
}
