//! The PTX that is embedded in the binary: the memory instructions of the protocol.
//!
//! There are two kinds of tests. The assertions hold for any compiler and cannot be blessed. The snapshot is the
//! ordered list, by function, of all instructions that order, scope, synchronize or wait. It is checked only with the
//! project's compiler ([`BLESSED`]), because another one may place branches in another order. The output of another
//! compiler is not compared, and the test reports that.
//!
//! After an intended change: `INSTA_UPDATE=always cargo test --test ptx`, then read the difference of
//! tests/snapshots/ptx__protocol.snap before you commit it. A new compiler: change kernels/rustc-version, [`BLESSED`]
//! and the Dockerfile together, with the snapshot.

#![cfg(feature = "ptx")]
#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

#[path = "ptx/litmus.rs"]
mod litmus;
#[path = "ptx/order.rs"]
mod order;
mod passed;
mod skips;

use ginlab::cuda::for_capability;
use ptx_text::{Protocol, Read, functions, is_payload, mnemonic, protocol, short};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Release and LLVM of the compiler that generated the stored snapshot: Debian's rustc-web.
const BLESSED: &str = "1.96.0, LLVM 22.1.8";
/// Maximum registers that the driver may use, for small and for large blocks (host/cuda/gpu.rs), and the bytes
/// that a function may spill with them. The first number of bytes is for kernels that measure the cost of a put. The
/// second is for those that use the device API of programs ([`OF_GIN`]), of which `signal_check_warp`, a check without
/// measurements, spills most.
const REGISTERS_AND_SPILLED: [(u32, u32, u32); 2] = [(128, 24, 64), (64, 560, 2048)];

/// Bytes that a function of a program's module may spill at the fewest registers: for the loops that copy and add
/// bytes, and for the code around them. With more registers, they spill less; assembling these variants would take
/// another minute of CPU time. (Sums by blocks of 1024 threads spill most, without being slower.)
const SPILLED_BY_PROGRAMS: (u32, u32) = (680, 2048);
/// Modules that time calls in two variants each. They are assembled only for the GPU that is measured on; for the
/// others `signals` covers puts, signals and waits. Assembling them takes 22 s of CPU time per GPU.
const STUDIES: [&str; 2] = ["shmem", "shmem_exchange"];

/// Additional bytes that a function may store in a module that has calls by address (`cuda_std::call::by_address`), for
/// its callers' registers. Such a function is called rarely.
const SAVED: u32 = 192;

/// The same for functions that wait for a NIC's queue: they have a copy of the queue, 24 words.
const OF_CARDS: u32 = 320;

/// Factor for the exchanges of a mixture of experts: many calls in one kernel, whose iterations take microseconds.
const OF_EXPERTS: u32 = 2;

/// The kernels and functions that use the device API of programs, determined by their calls.
static OF_GIN: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let text: String = kernels_ptx::PTX.modules.iter().map(|(_, text)| *text).collect();
    ptx_text::flow::of_gin(&functions(&text))
});

/// Modules that are measured separately: puts, the ring, stores between GPUs, the device API. They have tighter limits
/// and are in the snapshot as a whole. Every other module except `bulk` contains programs, including new modules.
const MEASURED: [&str; 6] = ["puts", "queue", "ipc", "shmem", "shmem_exchange", "signals"];

/// Returns the concatenated text of the modules with these names.
fn modules(names: &[&str]) -> String {
    let find = |name: &str| kernels_ptx::PTX.modules.iter().find(|(known, _)| *known == name);
    let text = |name: &&str| find(name).unwrap_or_else(|| panic!("no PTX module {name}: tests/ptx.rs names it")).1;
    names.iter().map(text).collect()
}

/// Returns the text of the modules that are measured separately.
fn ptx() -> String {
    modules(&MEASURED)
}

/// Returns the lowest GPU of all modules except `bulk`.
fn arch() -> &'static str {
    kernels_ptx::PTX.arch.unwrap()
}

/// Returns the target GPU of a module.
fn target(ptx: &str) -> &str {
    ptx.lines().find_map(|line| line.strip_prefix(".target ")).unwrap()
}

/// Returns the module of bulk stores.
fn bulk() -> String {
    modules(&["bulk"])
}

/// Returns the plugin's own module.
fn mover() -> &'static str {
    nccl_ginlab::mover::driver::PTX.unwrap().trim_end_matches('\0')
}

/// Returns whether a module contains programs over the device API.
fn is_program(name: &str) -> bool {
    name != "bulk" && !MEASURED.contains(&name)
}

fn programs() -> String {
    kernels_ptx::PTX.modules.iter().filter(|(name, _)| is_program(name)).map(|(_, text)| *text).collect()
}

// --- assertions that cannot be blessed -------------------------------------------------------------------------------

type Rule = (&'static str, fn(&Protocol));

const RULES: [Rule; 10] = [
    ("nothing is weaker than its name", nothing_is_weaker_than_its_name),
    ("a push is what the ring says", a_push_is_what_the_ring_says),
    ("what lanes store for each other is fenced behind a barrier", what_lanes_store_for_each_other_is_fenced),
    ("lanes that go together hold one ring", lanes_that_go_together_hold_one_ring),
    ("a block's barriers are aligned", a_blocks_barriers_are_aligned),
    ("a block's barriers stand once each", a_blocks_barriers_stand_once_each),
    ("a wait is what the ring says", a_wait_is_what_the_ring_says),
    ("the payload goes out in stores of 16 bytes", the_payload_goes_out_in_stores_of_16_bytes),
    ("the floor is a fence, a flag and an acquire", the_floor_is_a_fence_a_flag_and_an_acquire),
    ("a flag for another GPU comes behind its data", a_flag_for_another_gpu_comes_behind_its_data),
];

#[test]
fn rules_hold() {
    passed::once("rules_hold", &[], || {
        let protocol = protocol(&ptx());
        for (name, rule) in RULES {
            eprintln!("rule: {name}");
            rule(&protocol);
        }
    });
}

#[test]
fn rules_detect_mutations() {
    passed::once("rules_detect_mutations", &[], || {
        let text = ptx();
        let read = Read::new(&text);
        for (right, wrong) in [
            ("fence.acq_rel.sys", "fence.acq_rel.gpu"),
            ("fence.acq_rel.sys", "membar.sys"),
            ("fence.acq_rel.sys;", ""),
            ("atom.relaxed.gpu.global.add.u64", "atom.global.add.u64"),
            ("atom.relaxed.gpu.global.add.u64", "atom.acq_rel.sys.global.add.u64"),
            ("atom.acquire.gpu.global.cas.b64", "atom.global.cas.b64"),
            ("st.relaxed.sys.global.v2.u64", "st.release.sys.global.v2.u64"),
            ("st.relaxed.sys.global.v2.u64", "st.global.v2.u64"),
            ("st.release.gpu.global.u64", "st.relaxed.gpu.global.u64"),
            ("ld.acquire.sys.global.v2.u64", "ld.volatile.global.v2.u64"),
            ("ld.acquire.sys.global.v2.u64", "ld.relaxed.sys.global.v2.u64"),
            ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
            ("bar.warp.sync", "mov.warp.sync"),
            ("atom.relaxed.gpu.global.cas.b64", "atom.relaxed.sys.global.cas.b64"),
            ("match.any.sync.b64", "mov.b64"),
            ("bar.red.or.pred", "barrier.red.or.pred"),
            ("nanosleep.u32", "mov.u32"),
            ("bar.sync", "bar.sync 0; bar.sync"),
            ("%globaltimer", "%clock64"),
            ("st.v2.b64", "st.b64"),
        ] {
            assert!(text.contains(right), "{right}");
            let spoilt = read.spoilt(right, wrong);
            let caught = RULES.iter().any(|(_, rule)| std::panic::catch_unwind(|| rule(&spoilt)).is_err());
            assert!(caught, "{wrong} instead of {right} goes unnoticed");
        }
    });
}

#[test]
fn full_warp_fence_requires_preceding_barrier() {
    let mut spoilt = protocol(&ptx());
    let list = spoilt.get_mut("put_kernel").unwrap();
    let is_shuffle = |mnemonic: &String| mnemonic.starts_with("shfl");
    let after_shuffle = |at: usize| {
        let since = list[..at].iter().rposition(|mnemonic| mnemonic.starts_with("fence")).map_or(0, |last| last + 1);
        list[since..at].iter().any(is_shuffle)
    };
    let fence = (0..list.len()).find(|at| list[*at] == "fence.acq_rel.sys" && after_shuffle(*at)).unwrap();
    let shuffle = list[..fence].iter().rposition(is_shuffle).unwrap();
    let barrier = list[shuffle..fence].iter().position(|mnemonic| mnemonic == "bar.warp.sync").unwrap() + shuffle;
    list.remove(barrier);
    assert!(std::panic::catch_unwind(|| what_lanes_store_for_each_other_is_fenced(&spoilt)).is_err());
}

fn all(protocol: &Protocol) -> impl Iterator<Item = (&str, &str)> {
    protocol.iter().flat_map(|(name, list)| list.iter().map(move |mnemonic| (name.as_str(), mnemonic.as_str())))
}

fn nothing_is_weaker_than_its_name(protocol: &Protocol) {
    for (name, mnemonic) in all(protocol) {
        let parts: Vec<&str> = mnemonic.split(['.', ' ']).collect();
        let orders = ["relaxed", "acquire", "release", "acq_rel", "sc"];
        let ordered = parts.iter().any(|part| orders.contains(part));
        // Litmus tests show which scopes are too narrow.
        let is_litmus = name.starts_with("litmus_");
        let scoped = parts.iter().any(|part| ["gpu", "sys"].contains(part) || is_litmus && *part == "cta");
        match parts[0] {
            "membar" => panic!("{name}: {mnemonic}: membar is a fence of the old model"),
            "ld" | "st" if parts.contains(&"cta") && !is_litmus => {
                panic!("{name}: {mnemonic}: the scope of a block reaches nobody")
            }
            "ld" => assert!(!parts.contains(&"volatile"), "{name}: {mnemonic}: order and scope are not said"),
            // LLVM writes `atom.global.add` for fetch_add(AcqRel), which is relaxed.
            "atom" | "red" => {
                assert!(ordered && scoped, "{name}: {mnemonic}: order or scope is not said");
                // Most GPUs do not support atomics on host memory, and GPU and CPU exchange no words by atomics.
                // Between GPUs, signals are added to by the kernels that communicate with other PEs.
                assert!(
                    is_of_gin(name) || !parts.contains(&"sys"),
                    "{name}: {mnemonic}: an exchange beyond the device, by a function that does not use the device API (kernels::gin)"
                );
            }
            // Orders different memory proxies within a block or device; it does not synchronize with other threads.
            "fence" if parts.contains(&"proxy") => {}
            "fence" => assert!(ordered && scoped, "{name}: {mnemonic}"),
            _ => {}
        }
    }
}

fn a_push_is_what_the_ring_says(protocol: &Protocol) {
    let push = &protocol["put_kernel"];
    let at = |wanted: &str| {
        push.iter().position(|mnemonic| mnemonic == wanted).unwrap_or_else(|| panic!("no {wanted} in {push:#?}"))
    };
    let payload = push.iter().position(|mnemonic| is_payload(mnemonic)).unwrap();
    let fences: Vec<&String> = push.iter().filter(|mnemonic| mnemonic.starts_with("fence")).collect();
    assert!(!fences.is_empty() && fences.iter().all(|fence| *fence == "fence.acq_rel.sys"), "{fences:?}");
    let adds: Vec<&String> = push.iter().filter(|mnemonic| mnemonic.starts_with("atom")).collect();
    let ticket = "atom.relaxed.gpu.global.add.u64";
    assert!(adds.len() == 2 && adds.iter().all(|add| *add == ticket), "a lone lane's add and a full warp's: {adds:?}");
    // Functions for partial warps are out of line, in the ring and in the queue experiment.
    for some_lanes in ["push_partial_warp", "elements::in_groups"] {
        assert!(protocol.keys().any(|name| name.contains(some_lanes)), "no {some_lanes}");
    }
    let some_lanes = protocol.iter().filter(|(name, _)| name.contains("partial_warp") || name.contains("in_groups"));
    let some_lanes = some_lanes.map(|(_, list)| list);
    for list in some_lanes {
        let at = |wanted: &str| list.iter().position(|mnemonic| mnemonic == wanted);
        // The position of its store among them depends on the compiler's layout, as described below.
        assert!(at(ticket).is_some() && at(ticket) < at("bar.warp.sync"), "ticket, then barrier: {list:#?}");
    }
    let commands: Vec<&String> = push.iter().filter(|mnemonic| mnemonic.starts_with("st.relaxed")).collect();
    assert!(commands.iter().all(|store| *store == "st.relaxed.sys.global.v2.u64"), "stores of 16 bytes: {commands:?}");
    assert!((3..=4).contains(&commands.len()), "by one lane, or by a full warp side by side: {commands:?}");
    // Payload, barrier, fence, command: in this order in the text, because the compiler may not reorder them.
    let command = at("st.relaxed.sys.global.v2.u64");
    let fence = at("fence.acq_rel.sys");
    let barrier = push[payload..].iter().position(|mnemonic| mnemonic.starts_with("bar")).unwrap() + payload;
    assert!(payload < barrier && barrier < fence && fence < command, "{push:#?}");
    assert!(at("atom.relaxed.gpu.global.add.u64") < fence, "the add hides behind the fence");
    // The layout of blocks may differ from their execution order. That every store follows the fence is checked by
    // loom.
    assert!(push[fence..].iter().any(|mnemonic| mnemonic == "bar.warp.sync"), "{push:#?}");
}

/// A full warp's lanes exchange their commands by shuffles, which do not order memory. A warp barrier must separate the
/// last of them from the fence.
fn what_lanes_store_for_each_other_is_fenced(protocol: &Protocol) {
    for name in ["put_kernel", "put_traced_kernel"] {
        let list = &protocol[name];
        let mut exchanges = 0;
        for (at, _) in list.iter().enumerate().filter(|(_, mnemonic)| *mnemonic == "fence.acq_rel.sys") {
            let since =
                list[..at].iter().rposition(|mnemonic| mnemonic.starts_with("fence")).map_or(0, |last| last + 1);
            let before = &list[since..at];
            let Some(shuffle) = before.iter().rposition(|mnemonic| mnemonic.starts_with("shfl")) else { continue };
            let barrier = before[shuffle..].iter().any(|mnemonic| mnemonic == "bar.warp.sync");
            assert!(barrier, "{name}: no barrier between shuffles and fence: {before:#?}");
            exchanges += 1;
        }
        assert!(exchanges > 0, "{name}: no exchange before a fence: {list:#?}");
    }
}

/// Before a leader takes tickets for other lanes, the lanes vote on which ring they hold. `queue_lanes`, where threads
/// push individually, votes once for commands and once for other elements. A block with one ring does not vote.
fn lanes_that_go_together_hold_one_ring(protocol: &Protocol) {
    let question = "match.any.sync.b64";
    for name in ["queue_lanes", "queue_lanes_watched"] {
        let list = &protocol[name];
        let questions: Vec<usize> = (0..list.len()).filter(|at| list[*at] == question).collect();
        assert_eq!(questions.len(), 2, "{name}: which ring: {list:#?}");
        for at in questions {
            let ticket = list[at..].iter().any(|mnemonic| mnemonic == "atom.relaxed.gpu.global.add.u64");
            assert!(ticket, "{name}: which ring, then tickets: {list:#?}");
        }
    }
    for name in ["put_kernel", "queue_ticket"] {
        assert!(!protocol[name].iter().any(|mnemonic| mnemonic == question), "{name}: {:#?}", protocol[name]);
    }
}

/// `barrier` without `.aligned` lets a lane arrive separately from its warp, and the warp stays diverged afterwards.
fn a_blocks_barriers_are_aligned(protocol: &Protocol) {
    a_blocks_barriers_are(protocol);
    for name in ["put_kernel", "queue_ticket", "queue_vyukov", "ping_pong"] {
        let votes = protocol[name].iter().any(|mnemonic| mnemonic.contains(".red.or.pred"));
        assert!(votes, "{name}: no vote: {:#?}", protocol[name]);
    }
}

/// A barrier that was copied into two branches blocks the lanes of one warp at two places, indefinitely. In the source
/// of `put_kernel`: a vote before a filled slot, a vote and a barrier after it, and twice the three votes of
/// `block_maximum`.
fn a_blocks_barriers_stand_once_each(protocol: &Protocol) {
    let list = &protocol["put_kernel"];
    let count = |wanted: &str| list.iter().filter(|mnemonic| mnemonic.starts_with(wanted)).count();
    assert_eq!((count("bar.red"), count("bar.sync")), (8, 1), "put_kernel: {list:#?}");
}

fn a_blocks_barriers_are(protocol: &Protocol) {
    for (name, mnemonic) in all(protocol).filter(|(_, mnemonic)| mnemonic.starts_with("barrier")) {
        assert!(mnemonic.contains(".aligned"), "{name}: {mnemonic}");
    }
}

fn a_wait_is_what_the_ring_says(protocol: &Protocol) {
    let wait = &protocol["kernels::ring::completion::wait_as"];
    let space = &protocol["kernels::ring::space::wait_for_space"];
    let count = |list: &[String], wanted: &str| list.iter().filter(|mnemonic| *mnemonic == wanted).count();
    // Loads of the completion line: one in the loop, one after the status, one where the deadline checks for progress.
    assert_eq!(count(wait, "ld.acquire.sys.global.v2.u64"), 3, "{wait:#?}");
    assert!(count(wait, "ld.acquire.gpu.global.v2.u64") >= 1, "{wait:#?}");
    assert!(count(space, "ld.acquire.sys.global.u64") >= 1, "{space:#?}");
    assert!(count(space, "ld.acquire.sys.global.v2.u64") >= 1, "{space:#?}");
    for list in [wait, space] {
        // Only acquires of system scope read host memory. Relaxed accesses stay on the device.
        assert!(list.iter().all(|mnemonic| !mnemonic.contains("relaxed.sys")), "{list:#?}");
        assert!(count(list, "st.release.gpu.global.u64") >= 2, "the relay releases: {list:#?}");
        assert!(count(list, "atom.acquire.gpu.global.cas.b64") >= 1, "{list:#?}");
        assert!(count(list, "mov.u64 %globaltimer") >= 2, "a wait has a deadline: {list:#?}");
        assert!(count(list, "nanosleep.u32") >= 1, "a wait backs off: {list:#?}");
    }
}

fn the_payload_goes_out_in_stores_of_16_bytes(protocol: &Protocol) {
    let push = &protocol["put_kernel"];
    let wide: Vec<&String> = push.iter().filter(|mnemonic| is_payload(mnemonic)).collect();
    let right = ["st.v2.b64", "st.global.v2.b64", "st.global.v4.b32", "st.v4.b32", "st.b128", "st.global.b128"];
    assert!(!wide.is_empty() && wide.iter().all(|mnemonic| right.contains(&mnemonic.as_str())), "{wide:?}");
}

fn the_floor_is_a_fence_a_flag_and_an_acquire(protocol: &Protocol) {
    let list = &protocol["ping_pong"];
    let at =
        |wanted: &str| list.iter().position(|mnemonic| mnemonic == wanted).unwrap_or_else(|| panic!("no {wanted}"));
    assert!(at("fence.acq_rel.sys") < at("st.relaxed.sys.global.u64"));
    assert!(at("st.relaxed.sys.global.u64") < at("ld.acquire.sys.global.u64"));
}

/// Required order: barrier, fence, count, fence, flag.
fn a_flag_for_another_gpu_comes_behind_its_data(protocol: &Protocol) {
    for name in
        ["ipc_write_4", "ipc_write_8", "ipc_write_16", "ipc_copy_4", "ipc_copy_8", "ipc_copy_16", "ipc_int_loop"]
    {
        signals_in_order(name, &protocol[name]);
    }
    for name in ["ipc_gate", "ipc_receive"] {
        let list = &protocol[name];
        let count = |wanted: &str| list.iter().filter(|mnemonic| *mnemonic == wanted).count();
        assert!(count("ld.acquire.sys.global.u64") >= 2, "{name} acquires, and looks at the host's word: {list:#?}");
        assert!(count("mov.u64 %globaltimer") >= 2 && count("nanosleep.u32") >= 1, "{name}: {list:#?}");
        assert!(count("st.release.sys.global.u64") >= 1, "{name}: {list:#?}");
    }
}

fn signals_in_order(name: &str, list: &[String]) {
    let flag = list.iter().position(|mnemonic| mnemonic == "st.release.sys.global.u64");
    let flag = flag.unwrap_or_else(|| panic!("{name}: no flag in {list:#?}"));
    let last = |wanted: &str, end: usize| {
        let found = list[..end].iter().rposition(|mnemonic| mnemonic.starts_with(wanted));
        found.unwrap_or_else(|| panic!("{name}: no {wanted} before {end} in {list:#?}"))
    };
    let second = last("fence.acq_rel.sys", flag);
    let count = last("atom.relaxed.gpu.global.add.u64", second);
    let first = last("fence.acq_rel.sys", count);
    last("bar", first);
}

// --- between GPUs ----------------------------------------------------------------------------------------------------

/// Number of accesses that a thread has in flight.
const UNROLL: usize = kernels::ipc_kernel::UNROLL;

/// Each kernel transfers data by accesses of its own width, in the documented number per loop iteration, and by single
/// bytes at the end.
fn the_accesses_between_gpus_are_wide_and_unrolled(functions: &Protocol) {
    for (width, suffix) in [(4, ".b32"), (8, ".v2.b32"), (16, ".v4.b32")] {
        for (operation, loads, stores) in [("write", false, true), ("copy", true, true), ("read", true, false)] {
            let name = format!("ipc_{operation}_{width}");
            let list: Vec<String> = functions[&name].iter().map(|statement| mnemonic(statement)).collect();
            for (access, wanted) in [("ld.global", loads), ("st.global", stores)] {
                // Basic blocks start with labels and end with branches: a run without either is an iteration of the
                // loop.
                let rounds = list.split(|word| word.starts_with('$') || word.starts_with("bra"));
                let wide = format!("{access}{suffix}");
                let most = rounds.map(|round| round.iter().filter(|word| **word == wide).count()).max().unwrap_or(0);
                assert_eq!(most, if wanted { UNROLL } else { 0 }, "{name}: {wide} in a row");
            }
            let other = |word: &&String| {
                (word.starts_with("st.") || word.starts_with("ld."))
                    && ![".param", ".b8", "sys", suffix].iter().any(|known| word.contains(known))
            };
            // A thread's sum at the end of a read.
            let others: Vec<&String> = list.iter().filter(other).filter(|word| *word != "st.b32").collect();
            assert!(others.is_empty(), "{name} also has {others:?}");
        }
    }
}

/// Checks the instructions required before and after a bulk store.
fn bulk_stores_are_fenced_and_waited_for(functions: &Protocol) {
    for name in ["ipc_bulk_write", "ipc_bulk_copy"] {
        let list: Vec<String> = functions[name].iter().map(|statement| mnemonic(statement)).collect();
        let at = |wanted: &str| {
            list.iter().position(|word| word.starts_with(wanted)).unwrap_or_else(|| panic!("no {wanted}: {list:#?}"))
        };
        let (fill, store) = (at("st.shared.v4.b32"), at("cp.async.bulk.global.shared::cta.bulk_group"));
        let fence = at("fence.proxy.async.shared::cta");
        assert!(fill < fence && fence < store, "{name}: the copy unit sees what was filled in: {list:#?}");
        assert!(list[fence..store].iter().any(|word| word.starts_with("bar")), "{name}: of all threads: {list:#?}");
        assert!(at("cp.async.bulk.wait_group.read") < fill, "{name}: filled again once it was read: {list:#?}");
        assert!(at("cp.async.bulk.commit_group") > store, "{name}: {list:#?}");
        let done = list.iter().position(|word| word == "cp.async.bulk.wait_group").unwrap();
        assert!(done > store && done < at("fence.proxy.async.global"), "{name}: {list:#?}");
        assert!(at("fence.proxy.async.global") < at("fence.acq_rel.sys"), "{name}: {list:#?}");
        signals_in_order(name, &list);
    }
}

#[test]
fn rules_between_gpus_hold_in_both_modules() {
    passed::once("rules_between_gpus_hold_in_both_modules", &[], || {
        the_accesses_between_gpus_are_wide_and_unrolled(&functions(&modules(&["ipc"])));
        bulk_stores_are_fenced_and_waited_for(&functions(&bulk()));
        nothing_is_weaker_than_its_name(&protocol(&bulk()));
        let programs = protocol(&programs());
        nothing_is_weaker_than_its_name(&programs);
        a_blocks_barriers_are(&programs);
    });
}

#[test]
fn rules_between_gpus_detect_mutations() {
    passed::once("rules_between_gpus_detect_mutations", &[], || {
        let text = modules(&["ipc"]);
        for (right, wrong) in [
            ("st.global.v4.b32", "st.global.v2.b32"),
            ("ld.global.v4.b32", "ld.global.b32"),
            ("st.global.b32", "st.b32"),
        ] {
            let spoilt = functions(&text.replace(right, wrong));
            let caught = std::panic::catch_unwind(|| the_accesses_between_gpus_are_wide_and_unrolled(&spoilt));
            assert!(caught.is_err(), "{wrong} instead of {right} goes unnoticed");
        }
        // Other kernels also have such stores.
        let (before, copy) = text.split_at(text.find(".entry ipc_copy_16").unwrap());
        let one_less = functions(&format!("{before}{}", copy.replacen("st.global.v4.b32", "mov.b32", 1)));
        assert!(std::panic::catch_unwind(|| the_accesses_between_gpus_are_wide_and_unrolled(&one_less)).is_err());
        for right in [
            "fence.proxy.async.shared::cta;",
            "fence.proxy.async.global;",
            "cp.async.bulk.wait_group.read",
            "cp.async.bulk.wait_group 0",
            "fence.acq_rel.sys;",
            "st.release.sys.global.u64",
        ] {
            assert!(bulk().contains(right), "{right}");
            let spoilt = functions(&bulk().replace(right, "mov.b32 "));
            let caught = std::panic::catch_unwind(|| bulk_stores_are_fenced_and_waited_for(&spoilt));
            assert!(caught.is_err(), "without {right} nothing is noticed");
        }
    });
}

#[test]
fn litmus_pairs_are_adjacent_and_detect_mutations() {
    passed::once("litmus_pairs_are_adjacent_and_detect_mutations", &[], || {
        let (text, bulk) = (modules(&["litmus"]), bulk());
        litmus::pairs_are_adjacent(&functions(&text));
        litmus::bulk_stores_are_in_order(&functions(&bulk));
        for (right, wrong) in [
            ("fence.sc.sys;", "fence.acq_rel.sys;"),
            ("fence.acq_rel.gpu;", ""),
            ("ld.acquire.cta", "ld.relaxed.cta"),
            ("st.release.gpu", "st.relaxed.gpu"),
            ("shr.u64 ", "mov.b64 "),
            ("%globaltimer", "%clock64"),
        ] {
            assert!(text.contains(right), "{right}");
            let spoilt = functions(&text.replace(right, wrong));
            let caught = std::panic::catch_unwind(|| litmus::pairs_are_adjacent(&spoilt));
            assert!(caught.is_err(), "{wrong} instead of {right} goes unnoticed");
        }
        // Kernels of bulk stores between GPUs also have such instructions.
        let (before, own) = bulk.split_at(bulk.find(".entry litmus_bulk").unwrap());
        for right in ["fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group 0"] {
            assert!(own.contains(right), "{right}");
            let spoilt = functions(&format!("{before}{}", own.replace(right, "mov.b32 ")));
            let caught = std::panic::catch_unwind(|| litmus::bulk_stores_are_in_order(&spoilt));
            assert!(caught.is_err(), "without {right} nothing is noticed");
        }
    });
}

#[test]
fn only_bulk_store_module_requires_newer_gpus() {
    for (name, text) in kernels_ptx::PTX.modules.iter().filter(|(name, _)| *name != "bulk") {
        assert!(target(text).starts_with(arch()), "{name}");
        assert!(!text.contains("cp.async.bulk") && !text.contains("fence.proxy"), "{name}");
    }
    assert!(target(&bulk()).starts_with("sm_90"));
    let names: Vec<String> = functions(&bulk()).into_keys().collect();
    assert_eq!(names, ["ipc_bulk_copy", "ipc_bulk_write", "litmus_bulk"]);
}

#[test]
fn every_kernel_is_in_one_module() {
    let entries =
        kernels_ptx::PTX.modules.iter().flat_map(|(_, text)| text.lines()).filter(|line| line.contains(".entry "));
    let mut seen = HashSet::new();
    assert_eq!(entries.filter(|line| !seen.insert(*line)).collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(seen.len() > 50, "{seen:?}");
}

/// Checks kernels that the host launches early. Before they wait for preceding grids, they may only look up one other
/// PE in a table that the host has uploaded. After the wait, they must permit the launch of the next grid.
fn early_kernels_wait_before_they_touch_anything(functions: &Protocol) {
    for (name, list) in functions.iter().filter(|(name, _)| name.starts_with("collective_")) {
        let list: Vec<String> = list.iter().map(|statement| mnemonic(statement)).collect();
        let all = |wanted: &str| (0..list.len()).filter(|at| list[*at] == wanted).collect::<Vec<usize>>();
        let (waits, lets) = (all("griddepcontrol.wait"), all("griddepcontrol.launch_dependents"));
        assert_eq!((waits.len(), lets.len()), (1, 1), "{name}: {list:#?}");
        assert!(waits[0] < lets[0], "{name}: the next grid behind the wait");
        let touches = |word: &&String| {
            let starts = ["ld.", "st.", "atom", "red.", "bar", "fence"];
            starts.iter().any(|start| word.starts_with(start)) && !word.contains(".param") && !word.contains(".local")
        };
        let before: Vec<&String> = list[..waits[0]].iter().filter(touches).collect();
        let allowed = if name.starts_with("collective_words_") { 1 } else { 0 };
        assert!(before.len() <= allowed && before.iter().all(|word| word.starts_with("ld.")), "{name}: {before:?}");
    }
}

#[test]
fn dependent_launches_wait_for_previous_grids() {
    passed::once("dependent_launches_wait_for_previous_grids", &[], || {
        let programs = programs();
        let later = for_capability(&programs, (9, 0));
        early_kernels_wait_before_they_touch_anything(&functions(&later));
        let without = later.replace("griddepcontrol.wait", "mov.b32");
        let late = later
            .replace("griddepcontrol.wait", "st.b64")
            .replace("griddepcontrol.launch_dependents", "griddepcontrol.wait");
        for spoilt in [functions(&without), functions(&late), functions(&programs)] {
            let caught = std::panic::catch_unwind(|| early_kernels_wait_before_they_touch_anything(&spoilt));
            assert!(caught.is_err(), "a kernel that does not wait goes unnoticed");
        }
        assert!(!protocol(&later).is_empty() && target(&later) == "sm_90");
    });
}

// --- the snapshot ----------------------------------------------------------------------------------------------------

#[test]
fn snapshot_matches_pinned_compiler() {
    let release = include_str!("../kernels/rustc-version").trim();
    assert_eq!(
        BLESSED.split(',').next(),
        Some(release),
        "bless the snapshot with the compiler of kernels/rustc-version"
    );
    let image = include_str!("../Dockerfile");
    assert!(image.contains(&format!("ARG RUST_VERSION={release}\n")), "the Dockerfile takes another one");
}

#[test]
fn example_edit_of_page_applies() {
    let said = "In `kernels/src/ring/producer.rs`, in `Fence::fence`, comment out `fence_acq_rel_sys();`.";
    assert!(include_str!("../docs/edit-a-kernel.md").contains(said), "the page names another place");
    let producer = include_str!("../kernels/src/ring/producer.rs");
    let body = producer.split("impl Fence {").nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap();
    assert!(body.contains("fn fence(self)") && body.contains("fence_acq_rel_sys();"), "{body}");
}

#[test]
fn protocol_instructions_match_snapshot() {
    let compiler = kernels_ptx::PTX.rustc.unwrap();
    if compiler != BLESSED {
        eprintln!(
            "not compared: rustc {compiler} wrote this PTX, rustc {BLESSED} the snapshot. The order of each function's \
             instructions is not held here; the rules of the other tests are."
        );
        return;
    }
    let mut text = String::new();
    // Code that programs share with other modules is listed there.
    let of_programs = protocol(&programs())
        .into_iter()
        .filter(|(name, _)| ["collective", "litmus"].iter().any(|first| name.starts_with(first)));
    // The kernel that copies for NCCL; its other functions are the device API's.
    let mover = protocol(mover()).into_iter().filter(|(name, _)| name == "mover");
    for (name, mut list) in protocol(&ptx()).into_iter().chain(protocol(&bulk())).chain(of_programs).chain(mover) {
        // The compiler may choose how far to unroll the payload's loop.
        list.retain(|mnemonic| !is_payload(mnemonic));
        if !list.is_empty() {
            text.push_str(&format!("{name}\n"));
            list.iter().for_each(|mnemonic| text.push_str(&format!("    {mnemonic}\n")));
        }
    }
    insta::with_settings!({
        omit_expression => true,
        description => "If this is what you meant: INSTA_UPDATE=always cargo test --test ptx, and read the difference.",
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!("ptx__protocol", text);
    });
}

// --- ptxas -----------------------------------------------------------------------------------------------------------

/// Returns `$GINLAB_PTXAS`, which must exist, or the one that `make setup` installs in .venv, if present.
fn ptxas() -> Result<PathBuf, String> {
    if let Some(chosen) = std::env::var_os("GINLAB_PTXAS") {
        return Ok(chosen.into());
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/ptxas");
    if path.is_file() { Ok(path) } else { Err(format!("no {}; `make setup` installs it", path.display())) }
}

#[test]
fn ptxas_accepts_every_gpu_within_registers() {
    let ptxas = match ptxas() {
        Ok(path) => path,
        Err(why) => {
            skips::skip(&why.to_string());
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let number = |arch: &str| arch.trim_start_matches("sm_").trim_end_matches(['a', 'f']).parse::<u32>().unwrap();
    let mut jobs = Vec::new();
    for &(name, text) in kernels_ptx::PTX.modules {
        let own = if name == "bulk" { "sm_90" } else { arch() };
        for arch in ["sm_80", "sm_90", "sm_100"] {
            // Code that programs share with other modules is assembled for every GPU there.
            let elsewhere = (is_program(name) || STUDIES.contains(&name)) && arch != "sm_90";
            if elsewhere && number(own) <= 90 {
                continue;
            }
            // PTX runs on its own target and on later ones.
            if number(arch) < number(own) || own.ends_with(['a', 'f']) && arch != own {
                eprintln!("{arch}: not for PTX of {own}");
                continue;
            }
            // Converts the PTX to the form in which the host passes it to that GPU.
            let source = folder.path().join(format!("{name}-{arch}.ptx"));
            let digits = number(arch);
            std::fs::write(&source, for_capability(text, (digits / 10, digits % 10)).as_bytes()).unwrap();
            // Spilling is highest at the fewest registers. With more registers, only the GPU that is measured on is
            // checked.
            let fewest = &REGISTERS_AND_SPILLED[REGISTERS_AND_SPILLED.len() - 1..];
            let measured = arch == "sm_90" && !is_program(name);
            let all = if measured { &REGISTERS_AND_SPILLED } else { fewest };
            jobs.extend(all.iter().map(|limits| (source.clone(), arch, *limits, (name, text))));
        }
    }
    // The plugin runs its kernel with many blocks of 256 threads, which take registers from other kernels.
    let source = folder.path().join("mover.ptx");
    std::fs::write(&source, mover()).unwrap();
    let measured = REGISTERS_AND_SPILLED[0];
    jobs.extend(["sm_80", "sm_90", "sm_100"].map(|arch| (source.clone(), arch, measured, ("puts", mover()))));
    // Each job takes some seconds of CPU time. At most one job per core, so that concurrent tests do not miss their
    // deadlines.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((source, arch, limits, module)) = jobs.get(next.fetch_add(1, Relaxed)) {
                    assembles(&ptxas, source, arch, *limits, *module);
                }
            });
        }
    });
}

/// Returns the output of an earlier successful run of this ptxas on the same bytes, or the file in which to store it.
/// Assembling everything takes 100 s of CPU time.
fn told_before(ptxas: &Path, source: &Path, told: &[String]) -> Result<String, PathBuf> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(source).unwrap());
    let program = std::fs::metadata(ptxas).unwrap();
    (ptxas, program.len(), program.modified().unwrap(), told).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptxas");
    std::fs::create_dir_all(&folder).unwrap();
    let kept = folder.join(format!("{:016x}.txt", hasher.finish()));
    std::fs::read_to_string(&kept).map_err(|_| kept)
}

/// The stored output is not used for other text, another GPU or other limits.
#[test]
fn recorded_ptxas_output_matches_current_ptx() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a module.ptx");
    let kept_for = |text: &str, told: &str| {
        std::fs::write(&source, text).unwrap();
        // Any file with a size and a date serves as the program.
        told_before(Path::new(file!()), &source, &[told.to_owned()])
    };
    let text = format!("// of process {}", std::process::id());
    let kept = kept_for(&text, "-arch=sm_90").unwrap_err();
    std::fs::write(&kept, "said").unwrap();
    assert_eq!(kept_for(&text, "-arch=sm_90").unwrap(), "said");
    assert!(kept_for(&text.replace('f', "F"), "-arch=sm_90").is_err() && kept_for(&text, "-arch=sm_80").is_err());
    std::fs::remove_file(kept).unwrap();
}

/// Checks that ptxas accepts a module for this GPU and that each of its functions keeps to the limits.
fn assembles(
    ptxas: &Path,
    source: &Path,
    arch: &str,
    (allowed, spills, spills_of_gin): (u32, u32, u32),
    (module, ptx): (&str, &str),
) {
    let told =
        ["-v".into(), format!("-maxrregcount={allowed}"), format!("-arch={arch}"), "-o".into(), "/dev/null".into()];
    let text = told_before(ptxas, source, &told).unwrap_or_else(|kept| {
        let output = Command::new(ptxas).args(&told).arg(source).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !text.contains("warning"), "{arch}: {text}");
        // Renamed only when complete: a partial file would check fewer functions.
        let mut whole = tempfile::NamedTempFile::new_in(kept.parent().unwrap()).unwrap();
        whole.write_all(text.as_bytes()).unwrap();
        whole.persist(kept).unwrap();
        text
    });
    let found = resources(&text);
    let (of_loops, around) = SPILLED_BY_PROGRAMS;
    assert_eq!(found.contains_key("put_kernel"), ptx.contains(".entry put_kernel("), "{arch}: {text}");
    for (name, (registers, spilled)) in found {
        let limit = match is_program(module) {
            true if name.ends_with("::sum") => of_loops,
            true if name.starts_with("moe_") => OF_EXPERTS * around,
            true => around,
            false if is_of_gin(&name) => spills_of_gin,
            false => spills,
        };
        let limit = if name.contains("::") && ptx.contains(".callprototype") { limit.max(SAVED) } else { limit };
        let limit = if name.starts_with("kernels::direct::") { limit.max(OF_CARDS) } else { limit };
        assert!(registers <= allowed, "{arch}: {name}: {registers} registers");
        assert!(spilled <= limit, "{arch} at {allowed} registers: {name}: {spilled} bytes spilled");
    }
}

fn is_of_gin(name: &str) -> bool {
    OF_GIN.contains(name)
}

/// Parses the registers and bytes of spill stores that ptxas reports for each function: "ptxas info : Function
/// properties for put_kernel", then "8 bytes stack frame, 4 bytes spill stores, ..."; for kernels also "Used 40
/// registers, ...".
fn resources(text: &str) -> BTreeMap<String, (u32, u32)> {
    let number = |line: &str, after: &str| -> Option<u32> {
        line.split(after)
            .next()
            .filter(|part| *part != line)?
            .rsplit([' ', ','])
            .find(|word| !word.is_empty())?
            .parse()
            .ok()
    };
    let mut found = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(next) = line.split("Function properties for ").nth(1) {
            name = short(next.trim());
        }
        let of: &mut (u32, u32) = found.entry(name.clone()).or_default();
        of.0 = of.0.max(number(line, " registers").unwrap_or(0));
        of.1 = of.1.max(number(line, " bytes spill stores").unwrap_or(0));
    }
    found
}

#[test]
fn ptxas_output_is_parsed_by_function() {
    let text = "ptxas info    : Compiling entry function 'put_kernel' for 'sm_90'\n\
                ptxas info    : Function properties for put_kernel\n    \
                    8 bytes stack frame, 4 bytes spill stores, 6 bytes spill loads\n\
                ptxas info    : Used 40 registers, used 1 barriers\n\
                ptxas info    : Function properties for shmem_p\n    \
                    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                ptxas info    : Used 7 registers\n";
    let found = resources(text);
    assert_eq!((found["put_kernel"], found["shmem_p"]), ((40, 4), (7, 0)));
}

#[test]
fn shortened_names_are_independent_of_hash() {
    for hash in ["Cs4GlXxbfTxJd_", "CsbSE61zFgCyu_"] {
        let mangled = format!("_RNvMNtNt{hash}7kernels4ring8producerNtB4_4Ring14wait_for_space");
        assert_eq!(short(&mangled), "kernels::ring::producer::Ring::wait_for_space");
        // The third `impl` block of its module.
        let mangled = format!("_RNvNvMs2_Nt{hash}7kernels6outletNtB7_7Outlets4push4push");
        assert_eq!(short(&mangled), "kernels::outlet::Outlets::push::push");
    }
    assert_eq!(short("put_kernel"), "put_kernel");
}
