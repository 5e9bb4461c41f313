//! Access of NICs to GPU memory: a fault where the instance type has it, and not where it does not or where the user
//! permits staging.

use super::super::CheckState;
use super::super::instances::Instance;
use super::fake::{Fake, trial};
use super::{copies, said};

const CHECKS: [&str; 3] = ["gpu-direct", "gpu-register", "rma"];

/// Returns an instance without GPUDirect: a closed driver, NICs that refuse GPU memory, and a provider that copies.
fn without_direct(name: &str) -> Fake {
    let instance = Instance::named(name).unwrap();
    let mut fake = Fake::of(name, instance.gpus as u8, instance.cards as u8);
    fake.closed_driver();
    fake.p2p("");
    fake.asked.registered = Some(Err("rdmap16s0 cannot register GPU memory: by dma-buf: refused".into()));
    copies(&mut fake);
    fake
}

fn states(fake: &Fake) -> [CheckState; 3] {
    CHECKS.map(|check| said(fake, check).state)
}

#[test]
fn gpu_memory_is_required_where_instance_has_direct_access() {
    let with: Vec<&str> =
        Instance::all().filter(|one| one.gpu_direct == Some(true)).map(|instance| instance.name).collect();
    assert!(with.contains(&"p5.48xlarge") && with.contains(&"g7e.48xlarge"), "{with:?}");
    for name in ["p5.48xlarge", "p5en.48xlarge", "g7e.48xlarge", "p6e-gb300r.36xlarge"] {
        assert_eq!(states(&without_direct(name)), [CheckState::Fail, CheckState::Fail, CheckState::Warn], "{name}");
    }
}

#[test]
fn staging_is_ok_where_instance_has_no_direct_access() {
    for name in ["p5.4xlarge", "g7e.8xlarge"] {
        let mut fake = without_direct(name);
        assert_eq!(states(&fake), [CheckState::Ok; 3], "{name}");
        for check in CHECKS {
            let said = said(&fake, check);
            assert!(said.found.ends_with(&format!(": a {name} has no GPUDirect")) && said.mend.is_empty(), "{said:?}");
        }
        // A libfabric without CUDA, and a provider that refuses the memory.
        fake.asked.registered = None;
        fake.asked.trials = Some(vec![trial(true, Err("registering 2 MiB: Bad address".into()))]);
        assert_eq!(said(&fake, "gpu-register").state, CheckState::Ok, "{name}");
        fake.asked.registered = Some(Ok("1 EFA devices can register GPU memory by dma-buf".into()));
        fake.asked.trials = Some(vec![trial(false, Ok(()))]);
        assert_eq!(said(&fake, "gpu-register").state, CheckState::Ok, "{name}");
        // Wrong bytes are wrong everywhere.
        fake.asked.trials = Some(vec![trial(true, Err("7 of 2097152 bytes are wrong after a write".into()))]);
        assert_eq!(said(&fake, "gpu-register").state, CheckState::Fail, "{name}");
        fake.remove("proc/driver");
        assert_eq!(said(&fake, "gpu-direct").state, CheckState::Fail, "{name}: no driver");
    }
}

#[test]
fn unknown_access_is_a_warning() {
    let fake = without_direct("g6e.48xlarge");
    assert_eq!(states(&fake), [CheckState::Warn; 3]);
    let said = said(&fake, "gpu-register");
    assert!(said.found.ends_with("; whether a g6e.48xlarge has GPUDirect is unknown"), "{said:?}");
}

#[test]
fn staging_can_be_permitted() {
    let mut fake = without_direct("p5.48xlarge");
    fake.wanted.staged = true;
    assert_eq!(states(&fake), [CheckState::Ok; 3]);
    assert!(said(&fake, "gpu-register").found.ends_with(": permitted by --staged-is-fine"));
}
