//! Tests that every check passes on a healthy machine, and fails or warns on a machine with the respective problem.

#![allow(clippy::unwrap_used)]

mod cases;
mod clusters;
mod fake;
mod gate;
mod mistakes;
mod staged;
mod tournament;
mod unseen;
mod xids;

use super::trial::Trial;
use super::*;
use cases::CASES;
use fake::{FI_INFO, Fake, gpu_state, trial};
use ginlab_bootstrap::MissingRank;
use std::fs;
use std::time::Duration;

pub(super) fn said(fake: &Fake, name: &str) -> Said {
    let check = CHECKS.iter().find(|check| check.name == name).unwrap();
    let (Ok(said) | Err(said)) = (check.run)(&fake.machine());
    said
}

/// Returns GPUs of which one has counted link errors.
fn errors(link_errors: LinkErrors) -> Vec<GpuState> {
    vec![gpu_state(0x20), GpuState { link_errors, ..gpu_state(0x21) }]
}

/// A change to a healthy machine.
type FakeChange = fn(&mut Fake);

/// Makes the provider claim GPU memory but access it by copies.
pub fn copies(fake: &mut Fake) {
    let why =
        "rail efa:rdmap16s0-rdm: fi_setopt of FI_OPT_CUDA_API_PERMITTED to false failed: Operation not supported (95)";
    let copied = Trial { copied: true, ..trial(true, Err(why.into())) };
    fake.asked.trials = Some(vec![trial(false, Ok(())), copied]);
}

#[test]
fn healthy_machine_passes_every_check() {
    let fake = Fake::healthy();
    let findings = examine(&fake.machine(), &[]);
    for finding in &findings {
        assert_eq!(finding.state, CheckState::Ok, "{finding:?}");
        assert!(finding.mend.is_empty() && finding.host == "node-a", "{finding:?}");
    }
    assert_eq!(findings.len(), CHECKS.len());
    assert_eq!(worst(&findings), Some(CheckState::Ok));
}

#[test]
fn every_check_detects_its_problem() {
    for (name, state, part, harm) in CASES {
        let mut fake = Fake::healthy();
        harm(&mut fake);
        let said = said(&fake, name);
        assert_eq!(said.state, *state, "{name}, {part}: {said:?}");
        assert!(said.found.contains(part), "{name}: {said:?}");
        assert!(!said.mend.is_empty(), "{name} does not say what mends it");
    }
    for check in &CHECKS {
        assert!(CASES.iter().any(|(name, ..)| *name == check.name), "nothing shows that {} can fail", check.name);
    }
}

/// Link errors that were recovered earlier are reported, but are not a problem.
#[test]
fn constant_link_errors_are_ok() {
    let mut fake = Fake::healthy();
    let once = LinkErrors { data_checksums: 7501, ..LinkErrors::default() };
    fake.asked.gpus = Some(Ok(errors(once)));
    let said_once = said(&fake, "nvlink");
    assert_eq!(said_once.state, CheckState::Ok);
    assert!(
        said_once
            .found
            .ends_with("0 recoveries, 0 checksums, 7501 data checksums since the driver was loaded; checked only once"),
        "{said_once:?}"
    );
    // A low rate is normal for such links.
    let later = LinkErrors { checksums: 80, data_checksums: 9990, ..once };
    fake.asked.gpus_later = Some((Duration::from_secs(9), errors(later)));
    let again = said(&fake, "nvlink");
    assert_eq!(again.state, CheckState::Ok, "{again:?}");
}

/// A NIC far from the GPU may be slower than staging. A single faster NIC shows that NICs can access GPU memory.
#[test]
fn fastest_rail_determines_detected_path() {
    let mut fake = Fake::healthy();
    let far = Trial { paces: Some(fake::paces(400, 380)), ..trial(true, Ok(())) };
    fake.asked.trials = Some(vec![trial(true, Ok(())), far]);
    let said = said(&fake, "rma");
    assert_eq!(said.state, CheckState::Ok, "{said:?}");
    let ending = "written without CUDA calls of the provider (2 MiB in 185 us, 270 staged through the host)";
    assert!(said.found.ends_with(ending), "{said:?}");
}

#[test]
fn running_mps_server_is_reported() {
    let mut fake = Fake::healthy();
    fake.write("tmp/nvidia-mps/control", "");
    assert_eq!(said(&fake, "mps").found, "a server answers in /tmp/nvidia-mps: ranks use it");
    fake.asked.mps = Some(false);
    assert!(said(&fake, "mps").found.starts_with("/bin/nvidia-cuda-mps-control: ginlab starts a server"));
    fake.variable("CUDA_MPS_PIPE_DIRECTORY=/run/mps");
    fake.asked.mps = Some(true);
    assert!(said(&fake, "mps").found.starts_with("a server answers in /run/mps (CUDA_MPS_PIPE_DIRECTORY)"));
}

#[test]
fn durations_are_sorted_longest_first() {
    let mut took = Took::default();
    assert_eq!(took.of("nothing", || 5), 5);
    assert!(took.text().starts_with("checks took 0.0 s"), "{}", took.text());
}

/// On a machine without EFA and GPUs, their checks neither fail nor pass.
#[test]
fn missing_hardware_skips_checks() {
    let fake = Fake::plain();
    for name in [
        "efa-devices",
        "efa-driver",
        "efa-links",
        "gpu-direct",
        "gpu-async",
        "gpu-register",
        "gdrcopy",
        "gpu",
        "xid",
        "nvlink",
        "mps",
        "visible",
        "counters",
    ] {
        assert_eq!(said(&fake, name).state, CheckState::Skipped, "{name}");
    }
    let mut fake = Fake::plain();
    fake.wanted.efa = true;
    for name in ["efa-devices", "efa-links"] {
        assert_eq!(said(&fake, name).state, CheckState::Fail, "{name} with --require-efa");
    }
}

/// The line is printed only if it is known that no GPU and no NIC can be used.
#[test]
fn fit_is_reported_only_without_gpu_and_nic() {
    let fit = |fake: &Fake| only_emulated(&fake.machine());
    assert_eq!(fit(&Fake::healthy()), None);
    let mut fake = Fake::plain();
    fake.asked.visible = None;
    let line = fit(&fake).unwrap();
    assert!(
        line.starts_with("fit only for the emulated device (no GPU, no EFA device). Run: ginlab proxy --np 2"),
        "{line}"
    );
    assert!(line.contains("ginlab write -p soft-efa:p5"), "{line}");
    fake.no_listing = true;
    assert!(fit(&fake).unwrap().contains("ginlab proxy -p model:p5"), "without libfabric");
    let blind = Fake::healthy();
    blind.remove("sys/bus");
    assert_eq!(fit(&blind), None, "the bus was not recorded");
}

/// EFA devices need not work if runs use another provider.
#[test]
fn another_provider_asks_nothing_of_efa() {
    let mut fake = Fake::healthy();
    fake.write(".dockerenv", "");
    fake.remove("dev/infiniband");
    assert_eq!(said(&fake, "container").state, CheckState::Fail);
    fake.wanted.other_provider = true;
    for name in ["container", "efa-driver", "libfabric", "memlock"] {
        assert!(said(&fake, name).state < CheckState::Warn, "{name}: {:?}", said(&fake, name));
    }
}

#[test]
fn one_check_by_its_name() {
    let fake = Fake::healthy();
    let findings = examine(&fake.machine(), &["memlock".into()]);
    assert_eq!(findings.iter().map(|finding| finding.check.as_str()).collect::<Vec<_>>(), ["memlock"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(Machine::recorded(empty.path(), Requirements::default()).unwrap_err().contains("not a recorded machine"));
}

#[test]
fn reports_of_ranks_are_compared() {
    use super::peers::{DoctorRankInfo, compare};
    let card = |host: &str| DoctorRankInfo {
        host: host.into(),
        machine: host.into(),
        processes: format!("pid:[{host}]"),
        versions: vec![("libfabric".into(), "2.1".into()), ("driver".into(), "580".into())],
        cards: Some(32),
        gpus: Some(8),
        unopened: None,
        unreached: Vec::new(),
        rails: Some(4),
    };
    let states = |cards: &[DoctorRankInfo], clocks: &[(f64, f64)]| -> Vec<CheckState> {
        compare(cards, clocks).iter().map(|finding| finding.state).collect()
    };
    let good = [card("a"), card("b")];
    let even = [(0.0, 0.0), (0.002, 0.001)];
    assert_eq!(states(&good, &even), [CheckState::Ok; 5]);
    let with = |change: fn(&mut DoctorRankInfo)| {
        let mut cards = good.to_vec();
        change(&mut cards[1]);
        let found = compare(&cards, &even);
        let bad = found.into_iter().find(|finding| finding.state > CheckState::Ok).unwrap();
        assert!(!bad.mend.is_empty());
        (bad.check, bad.state, bad.found)
    };
    let (check, state, found) = with(|card| card.versions[0].1 = "1.17".into());
    assert_eq!(
        (check.as_str(), state, found.as_str()),
        ("peers-versions", CheckState::Fail, "libfabric is 2.1 on a and 1.17 on b")
    );
    let (check, state, _) = with(|card| card.cards = Some(31));
    assert_eq!((check.as_str(), state), ("peers-cards", CheckState::Fail));
    let (check, state, _) = with(|card| card.machine = "a".into());
    assert_eq!((check.as_str(), state), ("peers-processes", CheckState::Warn));
    let (check, state, found) = with(|card| card.unreached = vec!["rank 0 on rail 2: timed out".into(), "more".into()]);
    assert_eq!(
        (check.as_str(), state, found.as_str()),
        ("peers-rails", CheckState::Fail, "b: rank 0 on rail 2: timed out (1 more)")
    );
    assert_eq!(states(&good, &[(0.0, 0.0), (-3.0, 0.5)])[2], CheckState::Warn);
    assert_eq!(states(&good, &[(0.0, 0.0), (3.0, 2.5)])[2], CheckState::Ok, "the message's way may be all of it");
}

/// Ranks that are missing for the same reason share an entry, so that the line of a large job stays readable.
#[test]
fn missing_ranks_are_grouped() {
    let missing = |rank: usize, host: Option<&str>, why: &str| MissingRank {
        rank,
        host: host.map(str::to_owned),
        why: why.to_owned(),
    };
    assert_eq!(peers::ranks(512, &[]).found, "512 ranks");
    let mut all: Vec<MissingRank> = (8..512).map(|rank| missing(rank, None, "it did not arrive")).collect();
    all.insert(0, missing(7, Some("b"), "it left"));
    all.insert(0, missing(3, Some("b"), "it left"));
    let finding = peers::ranks(6, &all);
    let expected = "506 of 512 ranks are missing: ranks 3, 7 (host b): it left; ranks 8 to 511 (never connected): it did \
                    not arrive";
    assert_eq!((finding.state, finding.found.as_str()), (CheckState::Fail, expected));
}

/// A few retransmissions in many packets, and peers that left, are reported without a warning.
#[test]
fn rare_retransmissions_are_ok() {
    let mut fake = Fake::healthy();
    fake.counter("rdmap17s0", "retrans_pkts", 17);
    fake.counter("rdmap17s0", "unresponsive_remote_events", 40);
    let found = said(&fake, "counters");
    assert_eq!(found.state, CheckState::Ok, "{found:?}");
    assert_eq!(
        found.found,
        "since the devices came up: rdmap17s0/1 retrans_pkts 17 of 1000000 packets (17.0 per million); rdmap17s0/1 \
         unresponsive_remote_events 40"
    );
    fake.asked.counters_before = Some(ginlab_topology::environment::NicCounters::read(fake.folder.path()));
    assert!(said(&fake, "counters").found.ends_with("; nothing during the trials"));
}

/// A driver that does not know the rate of a device reports 100 Gb/s.
#[test]
fn constant_rate_of_driver_is_ok() {
    let fake = Fake::healthy();
    assert!(said(&fake, "efa-links").found.contains("ports at 400 Gb/s"));
    for bus in 0x10..0x10 + fake::CARDS {
        fake.write(&format!("sys/class/infiniband/rdmap{bus}s0/ports/1/rate"), "100 Gb/sec (4X EDR)\n");
    }
    let found = said(&fake, "efa-links");
    assert!(found.state == CheckState::Ok && found.found.contains("the driver's constant; expected 400"), "{found:?}");
}

/// A process of sshd in a pod with half of the node's EFA devices has no variable of Kubernetes.
#[test]
fn half_of_node_is_enough_with_its_number() {
    let mut fake = Fake::of("p5en.48xlarge", 8, 16);
    (8..16).for_each(|card| fake.remove(&format!("dev/infiniband/uverbs{card}")));
    fake.domains(8);
    fake.wanted.cards = Some(8);
    assert_eq!(said(&fake, "libfabric").state, CheckState::Ok, "{:?}", said(&fake, "libfabric"));
    fake.wanted.cards = None;
    assert_eq!(said(&fake, "libfabric").state, CheckState::Fail);
    fake.write("run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    assert_eq!(said(&fake, "libfabric").state, CheckState::Ok);
    fake.remove("run");
    fake.variable("FI_EFA_IFACE=rdmap16s0");
    assert!(said(&fake, "libfabric").mend.starts_with("unset FI_EFA_IFACE"));
}

/// Each instance type is known with and without HyperPod's prefix, and a lost GPU or NIC of it fails.
#[test]
fn every_known_instance_is_counted() {
    use super::instances::Instance;
    let names: std::collections::BTreeSet<&str> = Instance::all().map(|instance| instance.name).collect();
    assert_eq!(names.len(), Instance::all().count());
    for instance in super::instances::COUNTED {
        assert_eq!(Instance::named(&format!("ml.{}", instance.name)), Some(instance));
        let mut fake = Fake::of(&format!("ml.{}", instance.name), instance.gpus as u8, instance.cards as u8);
        for check in ["gpu", "efa-devices", "efa-links"] {
            assert_eq!(said(&fake, check).state, CheckState::Ok, "{}: {:?}", instance.name, said(&fake, check));
        }
        fake.wanted.efa = true;
        fake.lose_card(0);
        let text = format!("{} of {} EFA devices of a {}", instance.cards - 1, instance.cards, instance.name);
        assert!(said(&fake, "efa-devices").found.starts_with(&text), "{:?}", said(&fake, "efa-devices"));
        fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(0x20)));
        assert_eq!(said(&fake, "gpu").state, CheckState::Fail, "{}", instance.name);
    }
    assert_eq!(Instance::named("p5.48xlagre"), None);
}
