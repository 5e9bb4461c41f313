//! Tests that a rail must prove its support for GPU memory. Runs over libfabric's own EFA provider on software NICs,
//! below a double (hmem_double.c) that claims such memory as a libfabric with CUDA does. The memory is host memory
//! declared as a GPU's.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod skips;

use ginlab::cuda::Device;
use ginlab::doctor::trial;
use ginlab::fabric::discover::{self, Reach};
use ginlab::fabric::libfabric::{GpuMemory, LibfabricRail, RailOptions, require_library};
use ginlab::fabric::{Access, Completion, MemoryRange, Post, Rail, Transfer, soft};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Versions of libfabric's symbols that ginlab looks up.
const VERSIONS: &str = "FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;
FABRIC_1.4 { fi_tostr_r; } FABRIC_1.3;
";

/// Compiles the double and makes ginlab load libfabric through it. Returns false, with the reason printed, if that is
/// impossible.
fn stand_in(folder: &Path) -> bool {
    let (source, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hmem_double.c"), folder.join("libhmem_double.so"));
    let versions = folder.join("versions");
    std::fs::write(&versions, VERSIONS).unwrap();
    let script = format!("-Wl,--version-script={}", versions.display());
    let compiler =
        Command::new("cc").args(["-shared", "-fPIC", "-D_GNU_SOURCE", &script, "-o"]).args([&to, &source]).output();
    let said = match compiler {
        Err(_) => return skip("no C compiler"),
        Ok(done) if !done.status.success() => String::from_utf8_lossy(&done.stderr).into_owned(),
        Ok(_) => String::new(),
    };
    if said.contains("rdma/fabric.h") {
        return skip("no headers of libfabric");
    }
    assert_eq!(said, "", "cc failed");
    // Software NICs may start this program again with the variables below. The double must not be loaded below itself
    // then.
    let named = ["HMEM_DOUBLE_OF", "GINLAB_LIBFABRIC"].into_iter().find_map(|name| std::env::var(name).ok());
    let below = named.unwrap_or_else(|| "libfabric.so.1".to_owned());
    // SAFETY: this program has one test, and no other ginlab code runs yet.
    unsafe {
        std::env::set_var("HMEM_DOUBLE_OF", below);
        std::env::set_var("GINLAB_LIBFABRIC", &to);
    }
    true
}

/// Prints the reason for skipping the test.
fn skip(why: &str) -> bool {
    skips::skip(why);
    false
}

/// Writes 8 bytes of this memory to the rail itself. Returns the outcome of the completion.
fn written_to_itself(rail: &mut LibfabricRail, memory: MemoryRange) -> Result<(), String> {
    // SAFETY: the caller's memory outlives the rail.
    let region = unsafe { rail.register(memory, Access::ALL) }.map_err(|error| error.to_string())?;
    let peer = rail.add_peer(&rail.address().unwrap()).unwrap();
    let transfer = Transfer {
        peer,
        local_offset: 0,
        remote: rail.remote(&region),
        remote_offset: 64,
        bytes: 8,
        immediate: None,
        token: 1,
        more: false,
    };
    let (mut posted, mut done, started) = (false, Vec::new(), Instant::now());
    while started.elapsed() < Duration::from_secs(20) {
        if !posted {
            // SAFETY: no other code accesses the memory.
            posted = unsafe { rail.write(&region, &transfer) }.map_err(|error| error.to_string())? == Post::Accepted;
        }
        rail.poll(&mut done).unwrap();
        match done.pop() {
            Some(Completion::Done { .. }) => return Ok(()),
            Some(other) => return Err(format!("{other:?}")),
            None => {}
        }
    }
    Err("nothing has completed for 20 s".to_owned())
}

/// A single test, because libfabric is loaded once per process.
#[test]
fn false_gpu_memory_support_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    if !stand_in(folder.path()) {
        return;
    }
    if let Err(why) = soft::load("soft-efa:fast,cards=1") {
        skip(&why.to_string());
        return;
    }
    require_library().unwrap();
    let choice = match discover::choose_provider(Some("efa")) {
        Ok(choice) => choice,
        Err(why) => {
            skip(&why.to_string());
            return;
        }
    };
    let chosen = discover::select_domains(&choice.provider, 1, Reach::SameHost, &[], None, 0, 1).unwrap();
    let domain = &chosen.domains[0];
    let asked = RailOptions { cuda_memory: true, ..RailOptions::default() };
    let mut bytes: Vec<u8> = (0..128).collect();
    let address = bytes.as_mut_ptr().expose_provenance() as u64;
    let [host, gpu] = [None, Some(0)].map(|cuda_device| MemoryRange { address, bytes: 128, cuda_device });
    // SAFETY: there is one test; libfabric reads the variable in calls of this thread.
    let mode = |mode: &str| unsafe { std::env::set_var("HMEM_DOUBLE", mode) };

    // The double can only copy, and reports that when CUDA calls are forbidden: the rail is for host memory, and the
    // payload is staged.
    mode("copies");
    let mut rail = LibfabricRail::open(domain, &asked).unwrap();
    let GpuMemory::ByCudaCalls(refused) = rail.gpu_memory().clone() else {
        panic!("believed: {:?}", rail.gpu_memory())
    };
    let line = refused.to_string();
    assert!(line.contains("FI_OPT_CUDA_API_PERMITTED to false failed: Operation not supported (95)"), "{line}");
    assert!(line.contains("stage through pinned host memory"), "{line}");
    assert!(!rail.limits().cuda_memory);
    // SAFETY: the request is rejected before anything is registered.
    assert_eq!(unsafe { rail.register(gpu, Access::ALL) }.unwrap_err(), *refused);
    assert_eq!(written_to_itself(&mut rail, host), Ok(()));
    // SAFETY: the memory outlives the call.
    assert_eq!(unsafe { LibfabricRail::prove_gpu(domain, &RailOptions::default(), gpu) }, Err(*refused));
    drop(rail);

    // The double accepts but does not register the memory with the NIC: the key is not a NIC key.
    mode("lies");
    let rail = LibfabricRail::open(domain, &asked).unwrap();
    assert_eq!((rail.gpu_memory(), rail.limits().cuda_memory), (&GpuMemory::ByCard, true));
    drop(rail);
    // SAFETY: the memory outlives the call.
    let line = unsafe { LibfabricRail::prove_gpu(domain, &RailOptions::default(), gpu) }.unwrap_err().to_string();
    assert!(
        line.contains("is wider than the device's keys of 4 B: the device has not registered this memory"),
        "{line}"
    );

    // The NIC registers the memory and transfers its bytes.
    mode("registers");
    // SAFETY: the memory outlives the call.
    assert_eq!(unsafe { LibfabricRail::prove_gpu(domain, &RailOptions::default(), gpu) }, Ok(()));
    let mut rail = LibfabricRail::open(domain, &asked).unwrap();
    assert_eq!((rail.gpu_memory(), rail.limits().cuda_memory), (&GpuMemory::ByCard, true));
    assert_eq!(written_to_itself(&mut rail, gpu), Ok(()));
    drop(rail);
    assert_eq!(bytes[64..72], [0, 1, 2, 3, 4, 5, 6, 7]);

    // Doctor's trial times both paths. A provider that copies secretly is slower than staging, which makes its copies
    // once.
    let trial = || trial::loop_back(domain, &Device::Emulated, true, Duration::from_secs(20));
    let honest = trial();
    assert_eq!((honest.outcome, honest.copied, honest.paces.is_some()), (Ok(()), false, true));
    mode("secret");
    let secret = trial();
    assert_eq!(secret.outcome, Ok(()), "every byte arrives");
    let paces = secret.paces.unwrap();
    assert!(paces.looks_staged(), "not found out: {paces}");

    // A rail opened without GPU memory makes no requests for it.
    mode("copies");
    let rail = LibfabricRail::open(domain, &RailOptions::default()).unwrap();
    assert_eq!(rail.gpu_memory(), &GpuMemory::NotOffered);
}
