//! Xid errors: the action for each number, and their lines in both forms of the kernel log. Also the assignment of NICs
//! to GPUs for trials.

use super::super::kernel_log::{Action, Xid, state_of};
use super::super::near::share_out;
use super::super::{CheckState, Machine, Requirements};
use super::fake::{Fake, address};
use super::said;
use ginlab_topology::pci::PciAddress;
use std::path::Path;

#[test]
fn numbers_have_actions_of_catalog() {
    let action =
        |number: u32, rest: &str| Xid::of(&format!("NVRM: Xid (PCI:0000:20:00): {number}, {rest}")).unwrap().action;
    for (numbers, expected) in [
        (&[43, 63, 92, 121][..], Action::Ignore),
        (&[13, 31, 45, 94, 126], Action::RestartProgram),
        (&[81, 125, 144, 150, 157, 159, 162, 165, 999], Action::Monitor),
        (&[48, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158], Action::Reset),
        (&[79, 151, 168], Action::Reboot),
        (&[54], Action::Replace),
    ] {
        for number in numbers {
            assert_eq!(action(*number, "x"), expected, "{number}");
        }
    }
    for (text, expected) in [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Action::Reset),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Action::Reboot),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Action::Reset),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Action::Reset),
        ("GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)", Action::Ignore),
    ] {
        assert_eq!(action(154, text), expected, "{text}");
    }
    assert_eq!(
        [Action::Ignore, Action::Monitor, Action::Reset].map(state_of),
        [CheckState::Ok, CheckState::Warn, CheckState::Fail]
    );
}

#[test]
fn lines_of_dmesg_and_journal_parse() {
    let dmesg = Xid::of("[12345.678901] NVRM: Xid (PCI:0000:53:00): 13, pid=4711, Graphics Exception").unwrap();
    assert_eq!((dmesg.number, dmesg.seconds), (13, Some(12345.678901)));
    assert_eq!(dmesg.text, "Xid (PCI:0000:53:00): 13, pid=4711, Graphics Exception");
    let journal = Xid::of("[   12.500000] node-a kernel: NVRM: Xid (PCI:0000:53:00): 63, remapped").unwrap();
    assert_eq!((journal.number, journal.seconds), (63, Some(12.5)));
    assert_eq!(Xid::of("[1.0] NVRM: loading NVIDIA UNIX Open Kernel Module"), None);
    assert_eq!(Xid::of("NVRM: Xid (PCI:0000:53:00): x"), None);
}

#[test]
fn harmless_xids_are_ok_with_their_time() {
    let mut fake = Fake::healthy();
    fake.xids(&["[ 1800.500000] NVRM: Xid (PCI:0000:20:00): 63, Row Remapper: New row marked for remapping"]);
    let said = said(&fake, "xid");
    assert_eq!(said.state, CheckState::Ok);
    assert!(said.found.ends_with("(no action, 2.0 h ago)"), "{said:?}");
}

fn recorded_p5() -> Machine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/p5");
    Machine::recorded(&folder, Requirements::default()).unwrap()
}

/// On the recorded p5, each of the 8 GPUs is tried with the 4 NICs of its switch.
#[test]
fn each_gpu_is_tried_with_its_own_nics() {
    let machine = recorded_p5();
    let tree = machine.tree().unwrap();
    let gpus: Vec<Option<PciAddress>> = machine.gpus().into_iter().map(Some).collect();
    let nics: Vec<Option<PciAddress>> = machine.efa_cards().iter().map(|nic| Some(nic.address)).collect();
    let shares = share_out(Some(tree), &gpus, &nics);
    assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [4; 8]);
    for (gpu, share) in gpus.iter().zip(&shares) {
        let near = ginlab_topology::near(tree).into_iter().find(|near| Some(near.gpu.address) == *gpu).unwrap();
        for nic in share {
            assert!(near.nics.iter().any(|near| Some(near.address) == nics[*nic]), "{gpu:?}: {nic}");
        }
    }
    let mut all: Vec<usize> = shares.concat();
    all.sort_unstable();
    assert_eq!(all, (0..32).collect::<Vec<_>>(), "every NIC is tried once");
}

#[test]
fn unknown_addresses_are_shared_out_evenly() {
    assert_eq!(share_out(None, &[None, None], &[None; 5]).iter().map(Vec::len).collect::<Vec<_>>(), [3, 2]);
    // With fewer NICs than GPUs, each GPU is tried.
    assert_eq!(share_out(None, &[None; 4], &[None; 2]), [vec![0], vec![1], vec![0], vec![1]]);
    assert!(share_out(None, &[], &[None]).is_empty());
    assert_eq!(share_out(None, &[Some(address(1))], &[]), [Vec::<usize>::new()]);
}
