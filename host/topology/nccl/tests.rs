//! Trees to NCCL and back.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Way, near};
use proptest::prelude::*;

/// What matters of a GPU: address, node, cores, cards.
type Fact = (String, Option<u32>, Option<String>, Vec<String>);

fn facts(tree: &Tree) -> Vec<Fact> {
    let cards = |nics: &[&Function]| nics.iter().map(|nic| nic.address.to_string()).collect();
    let fact = |near: crate::Near<'_>| {
        (near.gpu.address.to_string(), near.gpu.numa_node, near.gpu.cores.clone(), cards(&near.nics))
    };
    near(tree).into_iter().map(fact).collect()
}

#[test]
fn a_p5_goes_to_nccl_and_back() {
    let mut p5 = Tree::recorded(Path::new("../../tests/fixtures/p5")).unwrap();
    let text = write(&p5);
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&p5));
    assert_eq!(back.of(Kind::Nic).count(), 32);
    // One bridge per GPU; NCCL counts what is in between.
    assert_eq!(text.matches("0x060400").count(), 8, "{text}");
    assert!(text.contains("<cpu numaid=\"-1\">"), "{text}");
    // With what sysfs adds.
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
fn devices_side_by_side_get_a_bridge_for_nccl() {
    let text = write(&p4d());
    assert_eq!(text.matches("busid=\"ffff:ff:").count(), 2, "{text}");
    assert!(text.contains("<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\""), "{text}");
    let back = parse(&text).unwrap();
    assert_eq!(facts(&back), facts(&p4d()));
    assert!(near(&p4d()).iter().all(|near| near.way == Some(Way::Root)));
    assert!(near(&back).iter().all(|near| near.way == Some(Way::Switch)));
}

/// Two root buses of a p4d as its VM shows them: GPUs and an EFA card side by side, nothing above them.
fn p4d() -> Tree {
    let device = |kind, bus: u8, device: u8| Function {
        address: PciAddress { domain: 0, bus, device, function: 0 },
        kind,
        name: String::new(),
        driver: None,
        rma: kind == Kind::Nic,
        path: format!("/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:{device:02x}.0"),
        numa_node: Some(0),
        cores: Some("0-23".into()),
        link: Some(("Unknown".into(), "0".into())),
        best_link: (kind == Kind::Gpu).then(|| ("16.0 GT/s PCIe".into(), "16".into())),
    };
    let of_bus = |bus| [device(Kind::Nic, bus, 0x1b), device(Kind::Gpu, bus, 0x1c), device(Kind::Gpu, bus, 0x1d)];
    Tree::sorted([of_bus(0x10), of_bus(0x20)].concat())
}

#[test]
fn what_nccl_writes() {
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
    let names: Vec<_> = tree.of(Kind::Nic).map(|nic| (nic.name.as_str(), nic.rma, nic.best_link.is_some())).collect();
    assert_eq!(names, [("eth0", false, false), ("rdmap79s0", true, false)]);
}

#[test]
fn what_is_no_topology_is_told_in_one_line() {
    let cpu = |inside: &str| format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>");
    for (text, part) in [
        (String::new(), "no XML"),
        ("<system version=\"1\"".into(), "no XML"),
        ("<svg/>".into(), "<svg> in place of <system>"),
        ("<system/>".into(), "version (none)"),
        ("<system version=\"2\"/>".into(), "version 2"),
        (cpu("<pci/>"), "without busid"),
        (cpu("<pci busid=\"10\"/>"), "no PCI address"),
        (cpu("<pci busid=\"0000:10:1c.0\" class=\"0x02\"/><pci busid=\"0000:10:1c.0\" class=\"0x02\"/>"), "twice"),
        ("<system version=\"1\"><pci busid=\"0000:10:1c.0\" class=\"0x02\"/></system>".into(), "below no <cpu>"),
        (cpu("<pci busid=\"0000:10:1c.0\" class=\"0x02\"/>").replace("numaid", "affinity=\"xyz\" numaid"), "no mask"),
        ("<!DOCTYPE a [<!ENTITY b \"&b;\">]><system version=\"1\">&b;</system>".into(), "no XML"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
    }
}

/// A device on a root bus, below a port of it, or below a switch below that port.
fn anywhere((root, port, depth, is_gpu): (u8, u8, u8, bool), number: u8) -> Function {
    // What stands on a root bus has its number.
    let (bus, device) = if depth == 0 { (root, 0x10 + number) } else { (0x80 + number, 0) };
    let address = PciAddress { domain: 0, bus, device, function: 0 };
    let mut path = format!("/sys/devices/pci0000:{root:02x}");
    if depth > 0 {
        path += &format!("/0000:{root:02x}:{:02x}.0", port + 1);
    }
    if depth > 1 {
        path += &format!("/0000:{:02x}:00.0", 0x40 + root * 4 + port);
    }
    Function {
        address,
        kind: if is_gpu { Kind::Gpu } else { Kind::Nic },
        name: String::new(),
        driver: None,
        rma: !is_gpu,
        path: format!("{path}/{address}"),
        numa_node: (root < 2).then_some(u32::from(root)),
        cores: (root == 1).then(|| "8-15".to_owned()),
        link: None,
        best_link: None,
    }
}

proptest! {
    /// Of any tree: what is near stays near.
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
        prop_assert_eq!(cores_of_mask(&mask_of_cores(&cores)), Some(cores));
    }
}
