//! Figures of the gate: each has a limit, and a machine passes only with values that were read.

use super::super::gate::{CHECK, Limit, MachineFigure, figures, finding};
use super::super::trial::Trial;
use super::super::{CheckState, GpuFabric, GpuState, LinkErrors, RemappedRows, Severity, examine};
use super::fake::{Fake, address, card_bus, gpu_state};
use std::time::Duration;

/// Returns a p6-b200 with a trial of each NIC from its GPU, which takes 185 us for 2 MiB, and a second query of the
/// GPUs.
fn fleet_node() -> Fake {
    let mut fake = Fake::healthy();
    let trials = (0..8u8).map(|card| Trial {
        gpu: true,
        device: Some(address(0x20 + card)),
        fastest: Some(Duration::from_micros(185)),
        ..Trial::named(format!("rdmap{}s0-rdm", card_bus(card)), Ok(()))
    });
    fake.asked.trials = Some(trials.collect());
    fake.asked.gpus_later = Some((Duration::from_secs(9), (0x20..0x28).map(gpu_state).collect()));
    fake
}

fn wrong(fake: &Fake) -> Vec<MachineFigure> {
    figures(&fake.machine(), 0.85).into_iter().filter(|figure| figure.state != CheckState::Ok).collect()
}

#[test]
fn healthy_node_keeps_every_limit() {
    let fake = fleet_node();
    let all = figures(&fake.machine(), 0.85);
    assert!(all.iter().all(|figure| figure.state == CheckState::Ok), "{:?}", wrong(&fake));
    let named = |name: &str| all.iter().filter(|figure| figure.name == name).count();
    for (name, count) in [
        ("gpus", 1),
        ("efa_devices", 1),
        ("ecc_uncorrected", 8),
        ("row_remapping_failed", 8),
        ("nvlinks_up", 8),
        ("nvlink_recoveries", 8),
        ("port_gbits_s", 8),
        ("retransmitted_share", 8),
        ("dropped_share", 8),
        ("loop_back_gbytes_s", 8),
        ("xid_errors_to_act_on", 1),
    ] {
        assert_eq!(named(name), count, "{name}");
    }
    let loop_back = all.iter().find(|figure| figure.name == "loop_back_gbytes_s").unwrap();
    // 2 MiB in 185 us.
    assert_eq!(loop_back.value.map(|rate| (rate * 100.0).round() / 100.0), Some(11.34));
    assert_eq!(loop_back.gpu.as_deref(), Some("0000:20:00.0"));
    assert!(matches!(loop_back.limit, Some(Limit::AtLeast(least)) if (least - 9.635).abs() < 0.01), "{loop_back:?}");
    let finding = finding("node-a", &all);
    assert_eq!((finding.check.as_str(), finding.state, finding.severity), (CHECK, CheckState::Ok, Severity::None));
    assert_eq!(finding.found, format!("{} figures within their limits", all.len()));
}

/// A fault, and the figure and item that show it.
type Case = (fn(&mut Fake), &'static str, &'static str);

const CASES: &[Case] = &[
    (|fake| fake.lose_card(3), "efa_devices", "machine"),
    (|fake| fake.remove(&format!("sys/bus/pci/devices/{}", address(0x25))), "gpus", "machine"),
    (|fake| fake.gpu(|gpu| gpu.ecc_uncorrected = Some(1)), "ecc_uncorrected", "0000:23:00.0"),
    (
        |fake| fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { failed: true, ..RemappedRows::default() })),
        "row_remapping_failed",
        "0000:23:00.0",
    ),
    (
        |fake| fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { pending: true, ..RemappedRows::default() })),
        "row_remapping_pending",
        "0000:23:00.0",
    ),
    (|fake| fake.gpu(|gpu| gpu.links_up = 17), "nvlinks_up", "0000:23:00.0"),
    (|fake| fake.gpu(|gpu| gpu.fabric = Some(GpuFabric::InProgress)), "fabric_not_ready", "0000:23:00.0"),
    (
        |fake| {
            let errors = LinkErrors { recoveries: 1, ..LinkErrors::default() };
            let later = |bus| GpuState {
                link_errors: if bus == 0x22 { errors } else { LinkErrors::default() },
                ..gpu_state(bus)
            };
            fake.asked.gpus_later = Some((Duration::from_secs(9), (0x20..0x28).map(later).collect()));
        },
        "nvlink_recoveries",
        "0000:22:00.0",
    ),
    (
        |fake| fake.write("sys/class/infiniband/rdmap18s0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        "port_gbits_s",
        "rdmap18s0",
    ),
    (|fake| fake.counter("rdmap17s0", "retrans_pkts", 2000), "retransmitted_share", "rdmap17s0/1"),
    (|fake| fake.counter("rdmap17s0", "rx_drops", 2000), "dropped_share", "rdmap17s0/1"),
    (|fake| fake.counter("rdmap17s0", "impaired_remote_conn_events", 3), "impaired_remote_conn_events", "rdmap17s0/1"),
    (
        |fake| fake.asked.trials.as_mut().unwrap()[2].fastest = Some(Duration::from_micros(400)),
        "loop_back_gbytes_s",
        "rdmap18s0-rdm",
    ),
    (|fake| fake.xids(&["[1.0] NVRM: Xid (PCI:0000:20:00): 79, lost"]), "xid_errors_to_act_on", "machine"),
];

#[test]
fn each_fault_exceeds_exactly_its_limit() {
    for (harm, name, item) in CASES {
        let mut fake = fleet_node();
        harm(&mut fake);
        let wrong = wrong(&fake);
        let said: Vec<(&str, &str, CheckState)> =
            wrong.iter().map(|figure| (figure.name, figure.item.as_str(), figure.state)).collect();
        assert_eq!(said, [(*name, *item, CheckState::Fail)]);
        let finding = finding("node-a", &wrong);
        assert_eq!((finding.state, finding.severity), (CheckState::Fail, Severity::Isolate));
        assert!(finding.found.contains(name) && finding.found.contains(item), "{}", finding.found);
    }
}

#[test]
fn figures_that_were_not_read_do_not_pass() {
    let mut fake = fleet_node();
    fake.asked.xids = Some(Err("Operation not permitted".into()));
    fake.gpu(|gpu| gpu.remapped = None);
    fake.remove("sys/class/infiniband/rdmap18s0/ports/1/rate");
    let wrong = wrong(&fake);
    assert!(wrong.iter().all(|figure| figure.state == CheckState::Skipped && figure.value.is_none()), "{wrong:?}");
    let finding = finding("node-a", &figures(&fake.machine(), 0.85));
    assert_eq!(finding.state, CheckState::Fail);
    assert!(finding.found.contains("machine xid_errors_to_act_on not read"), "{}", finding.found);
    fake.wanted.instance = Some("x9.large".into());
    assert!(figures(&fake.machine(), 0.85).is_empty());
}

#[test]
fn findings_have_severities() {
    let severity = |fake: &Fake, check: &str| {
        let findings = examine(&fake.machine(), &[check.to_owned()]);
        (findings[0].state, findings[0].severity)
    };
    let mut fake = Fake::healthy();
    assert_eq!(severity(&fake, "xid"), (CheckState::Ok, Severity::None));
    for (number, expected) in [
        (43, Severity::None),
        (13, Severity::Monitor),
        (48, Severity::Reset),
        (79, Severity::Reboot),
        (54, Severity::Isolate),
    ] {
        fake.xids(&[&format!("[1.0] NVRM: Xid (PCI:0000:20:00): {number}, x")]);
        assert_eq!(severity(&fake, "xid").1, expected, "{number}");
    }
    fake.gpu(|gpu| gpu.ecc_uncorrected = Some(1));
    assert_eq!(severity(&fake, "gpu"), (CheckState::Fail, Severity::Reset));
    // The service that configures the fabric has failed, and not the hardware.
    fake.asked.visible = Some(Vec::new());
    fake.gpu(|gpu| gpu.fabric = Some(GpuFabric::NotStarted));
    assert_eq!(severity(&fake, "nvlink"), (CheckState::Fail, Severity::Configure));
    fake.write("sys/class/infiniband/rdmap16s0/ports/1/state", "1: DOWN\n");
    assert_eq!(severity(&fake, "efa-links"), (CheckState::Fail, Severity::Isolate));
    fake.remove("dev/infiniband");
    assert_eq!(severity(&fake, "efa-driver"), (CheckState::Fail, Severity::Configure));
}
