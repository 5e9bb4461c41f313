//! Registration under a lowered limit of locked memory (`ulimit -l`). The test has its own program, because the limit
//! is per process.
//!
//! No provider that runs without a NIC locks the memory that it registers, so a wrapped rail does it instead. The
//! limit, the refusal and its error number come from the system.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::Access;
use ginlab::fabric::discover::{Reach, choose_provider, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::testing::faulty::{FaultyRail, RailFaults};
use ginlab::flow::{Flow, Target, run};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, setuid};
use std::time::Duration;

const LIMIT: u64 = 64 << 10;
const NOBODY: u32 = 65534;

#[test]
fn memory_beyond_lock_limit_is_rejected_with_limit() {
    setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT, LIMIT).unwrap();
    if Uid::effective().is_root() {
        // Root may lock without a limit (CAP_IPC_LOCK); other users may not.
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    let provider = choose_provider(Some("tcp")).unwrap().provider;
    let domain = select_domains(&provider, 1, Reach::SameHost, &[], None, 0, 1).unwrap().domains.remove(0);
    let rail = LibfabricRail::open(&domain, &RailOptions::default()).unwrap();
    let faults = RailFaults { lock_memory: true, ..Default::default() };
    let flow = Flow::new(vec![FaultyRail::new(rail, faults)], Duration::from_secs(20));
    let (device, _) = Device::open(DeviceChoice::Emulated, 0).unwrap();

    let error =
        flow.register(device.allocate(MemoryLocation::Host, 1 << 20).unwrap(), Access::ALL).unwrap_err().to_string();
    // libfabric 1.17 layers tcp under ofi_rxm, 2.x does not.
    let error = error.replace("tcp;ofi_rxm", "tcp");
    for words in ["rail tcp:", "registration of 1048576 B failed", "`ulimit -l` is 64 KiB", "memlock=-1"] {
        assert!(error.contains(words), "{words:?} is not in: {error}");
    }

    // Memory within the limit can be registered and transferred.
    let region = flow.register(device.allocate(MemoryLocation::Host, 8192).unwrap(), Access::ALL).unwrap();
    let offer = flow.offer(&[&region]).unwrap();
    let target = Target::new(flow.add_peer(&offer).unwrap(), &offer, 0).unwrap();
    region.buffer().write(0, &[7u8; 64]).unwrap();
    assert_eq!(run([flow.clone()], flow.write_all(&region, 0, &target, 4096, 64)).unwrap().unwrap(), 64);
    let mut arrived = [0u8; 64];
    region.buffer().read(4096, &mut arrived).unwrap();
    assert_eq!(arrived, [7; 64]);
}
