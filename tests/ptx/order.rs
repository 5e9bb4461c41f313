//! What orders a signal behind its bytes where a peer's heap is mapped (NVLink): payload stores, the barrier of the scope, one
//! `fence.acq_rel.sys`, the add. Without one of them a kernel is mostly right on the machines that we have, so the rule is read from the
//! PTX: on every way from a payload store to a signal's add both stand between, in this order.
//!
//! Nothing is listed by hand but [`UNORDERED`]: which functions store payload, which add to signals, and whether a thread, a warp or a block
//! does so follows from the PTX itself.

use ptx_text::flow::{FENCE, Function, Scope, Walk, functions};
use std::collections::BTreeSet;

/// A signal's add, as `signal_op`, `put_signal` and the barrier have it.
const ADD: &str = "red.relaxed.sys.global.add.u64";
/// What such an add must not be: nobody beyond the device sees it in time.
const NARROW_ADD: &str = "red.relaxed.gpu.global.add.u64";

/// How the names of kernels begin that have adds without a fence before them, and how many: calls of `signal_op`, which orders nothing.
/// Whoever adds a line here says why the kernel is right.
const UNORDERED: [(&str, usize); 7] = [
    // A broadcast's acknowledgement: it speaks of what this PE has read, and its threads have agreed on that.
    ("collective_messages_", 1),
    // A barrier's signals, where a kernel calls it in two places and it is a function: `barrier` fences before the call.
    ("kernels::gin::barrier::context::Context::scope::", 2),
    // A message has been looked at: as that acknowledgement.
    ("kernels::data_check::circle", 1),
    // What is said is the number itself: that there is nothing to answer, how many rows come, that no row comes. And by node, that rows are handed on: behind a
    // meeting of all blocks, whose fence only the thread makes that then signals.
    ("moe_", 4),
    // `tell`: a loop in which one thread signals several PEs, the first by a put with a signal. Its fence holds for the others too.
    ("collective_nodes_", 1),
    ("collective_puts_", 1),
    // The ping-pong of bare signals.
    ("shmem_signal", 2),
];

/// Of each add: what it has met before a fence.
fn adds(function: &Function) -> Vec<Walk> {
    let adds = (0..function.statements.len()).filter(|at| function.is(*at, ADD));
    adds.map(|at| function.back(at, &|at| function.is(at, FENCE))).collect()
}

/// What a fence has met before a barrier of the scope.
fn behind_barrier(function: &Function, fence: usize) -> Walk {
    function.back(fence, &|at| function.is_barrier(at))
}

/// What is wrong.
fn faults(function: &Function) -> Vec<String> {
    let (name, adds) = (&function.name, adds(function));
    let mut faults = Vec::new();
    let unordered = adds.iter().filter(|add| add.met_store).count();
    let known = UNORDERED.iter().find(|(first, _)| name.starts_with(first)).map_or(0, |(_, count)| *count);
    if unordered > known {
        faults.push(format!(
            "{name}: {unordered} adds to signals may come behind payload stores without {FENCE} between, and {known} are known to. \
             Adds of a put with a signal need it; where it is `signal_op`, which orders nothing, and right, a line \
             (\"{name}\", {unordered}) belongs into UNORDERED of tests/ptx/order.rs"
        ));
    }
    let fences: BTreeSet<usize> = adds.iter().flat_map(|add| add.cuts.iter().copied()).collect();
    if function.scope != Scope::Thread && fences.iter().any(|fence| behind_barrier(function, *fence).met_store) {
        faults.push(format!(
            "{name}: no barrier of the {:?} between payload stores and the fence before a signal",
            function.scope
        ));
    }
    if function.any(NARROW_ADD) {
        faults.push(format!("{name}: {NARROW_ADD}: a signal for this device alone"));
    }
    faults
}

/// The statements that keep this function's ordered adds behind payload: each of them is needed.
fn guards(function: &Function) -> BTreeSet<usize> {
    let ordered = adds(function).into_iter().filter(|add| !add.met_store);
    let fences: BTreeSet<usize> = ordered.flat_map(|add| add.cuts).collect();
    let barriers = fences
        .iter()
        .filter(|_| function.scope != Scope::Thread)
        .flat_map(|fence| behind_barrier(function, *fence).cuts);
    let barriers: Vec<usize> = barriers.collect();
    fences.into_iter().chain(barriers).collect()
}

/// The modules in which puts and signals go by stores: all but that of bulk stores.
fn modules() -> impl Iterator<Item = &'static str> {
    kernels_ptx::PTX.modules.iter().filter(|(name, _)| *name != "bulk").map(|(_, text)| *text)
}

#[test]
fn a_signal_comes_behind_its_bytes() {
    super::passed::once("a_signal_comes_behind_its_bytes", &[], || {
        let all: Vec<Function> = modules().flat_map(functions).collect();
        let faults: Vec<String> = all.iter().flat_map(faults).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        // Each scope in each family of kernels is among those that were looked at.
        let names: Vec<(&str, Scope)> =
            all.iter().filter(|one| one.any(ADD)).map(|one| (one.name.as_str(), one.scope)).collect();
        for (part, scopes) in [
            ("shmem_put_signal_", &[Scope::Thread, Scope::Warp, Scope::Block][..]),
            ("shmem_barrier_", &[Scope::Thread, Scope::Warp, Scope::Block]),
            ("signal_check_", &[Scope::Thread, Scope::Warp, Scope::Block]),
            ("data_check::", &[Scope::Thread, Scope::Warp, Scope::Block]),
            ("collective_messages_", &[Scope::Thread, Scope::Warp, Scope::Block]),
            ("collective_puts_", &[Scope::Thread, Scope::Warp, Scope::Block]),
            ("jacobi::exchange::Route::put", &[Scope::Block]),
            ("jacobi::door::send", &[Scope::Block]),
            ("jacobi_meet", &[Scope::Block]),
        ] {
            let found = |scope: &Scope| names.iter().any(|(name, of)| name.contains(part) && of == scope);
            assert!(scopes.iter().all(found), "{part} {scopes:?}: {names:?}");
        }
    });
}

/// Each barrier and each fence that the rule finds is needed: without it, or with a narrower one, the rule fails.
#[test]
fn the_rule_of_signals_catches_what_it_is_for() {
    super::passed::once("the_rule_of_signals_catches_what_it_is_for", &[], || {
        let (mut spoilt, mut unneeded) = ([0; 3], Vec::new());
        for function in modules().flat_map(functions).filter(|function| function.any(ADD)) {
            for guard in guards(&function) {
                let is_fence = function.is(guard, FENCE);
                let others = if is_fence { &["mov.b32", "fence.acq_rel.gpu"][..] } else { &["mov.b32"] };
                for other in others {
                    if faults(&function.with(guard, other)).is_empty() {
                        unneeded.push(format!("{}: {other} in place of {}", function.name, function.mnemonics[guard]));
                    }
                }
                spoilt[usize::from(is_fence)] += 1;
            }
            let add = (0..function.statements.len()).find(|at| function.is(*at, ADD)).unwrap();
            assert!(!faults(&function.with(add, NARROW_ADD)).is_empty(), "{}: {NARROW_ADD}", function.name);
            spoilt[2] += 1;
        }
        // Jacobi's block has met right before, to agree on whether to go on. Where a mixture of experts signals that rows are handed on, all blocks have met: each
        // meeting fences before and behind, and so does what the rows were put by.
        unneeded.retain(|what| !what.starts_with("moe_"));
        assert_eq!(
            unneeded,
            ["jacobi_meet: mov.b32 in place of bar.sync"],
            "another barrier or fence stands for these"
        );
        let [barriers, fences, adds] = spoilt;
        // That there is something to spoil. (A message has no add of its own over mapped memory.)
        assert!(barriers >= 20 && fences >= 30 && adds >= 25, "{spoilt:?}");
        eprintln!("{barriers} barriers, {fences} fences and {adds} functions' adds, each spoilt and found");
    });
}

/// `quiet` behind a put by stores: barrier, fence, and then it returns.
#[test]
fn a_quiet_fences_what_was_stored() {
    let module = super::modules(&["shmem"]);
    let puts = functions(&module);
    for name in ["shmem_put_thread", "shmem_put_warp", "shmem_put_block"] {
        let put = puts.iter().find(|function| function.name == name).unwrap();
        assert!(!put.unfenced(), "{name}: bytes are not fenced when quiet returns");
        let fences: Vec<usize> = (0..put.statements.len()).filter(|at| put.is(*at, FENCE)).collect();
        for fence in fences {
            let barriers = behind_barrier(put, fence);
            assert!(put.scope == Scope::Thread || !barriers.met_store, "{name}: no barrier before the fence");
            assert!(put.with(fence, "mov.b32").unfenced() && put.with(fence, "fence.acq_rel.gpu").unfenced(), "{name}");
            let without = |barrier: &usize| behind_barrier(&put.with(*barrier, "mov.b32"), fence).met_store;
            assert!(
                put.scope == Scope::Thread || barriers.cuts.iter().all(without),
                "{name}: a barrier that is not needed"
            );
        }
    }
}
