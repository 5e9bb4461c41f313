//! Order of a signal after its bytes if a peer's heap is mapped (NVLink): payload stores, the barrier of the scope, one
//! `fence.acq_rel.sys`, the add. A kernel that lacks one of them usually works on test machines, so the rule is checked
//! in the PTX. On every path from a payload store to a signal's add, barrier and fence must occur, in this order.
//!
//! Only [`UNORDERED`] is listed by hand. The PTX itself determines which functions store payload, which add to signals,
//! and whether a thread, a warp or a block does so.

use ptx_text::flow::{FENCE, PtxFunction, SignalScope, Walk, functions};
use std::collections::BTreeSet;

/// A signal's add, as in `signal_op`, `put_signal` and the barrier.
const ADD: &str = "red.relaxed.sys.global.add.u64";
/// The same add with too narrow a scope: other GPUs do not observe it in time.
const NARROW_ADD: &str = "red.relaxed.gpu.global.add.u64";

/// Prefixes of the names of kernels with adds that no fence precedes, and the number of such adds: calls of
/// `signal_op`, which orders nothing. A new line must state why the kernel is correct.
const UNORDERED: [(&str, usize); 11] = [
    // A broadcast's acknowledgement: it refers to what this PE has read, and its threads have synchronized since.
    ("collective_messages_", 1),
    // A barrier's signals, in a kernel that calls it in two places, so that it is out of line: `barrier` fences before
    // the call.
    ("kernels::gin::barrier::context::Context::scope::", 2),
    // This signal acknowledges that a message has been read, like a broadcast's acknowledgement.
    ("kernels::data_check::circle", 1),
    // The signal's number is the only information. It reports that no answer is due, the number of rows, or that no row
    // will arrive. By node, it reports that rows are forwarded, after a barrier of all blocks whose fence only the
    // signalling thread executes.
    ("moe_", 3),
    // `tell`: a loop in which one thread signals several PEs, the first by a put with a signal. Its fence also covers
    // the others.
    ("collective_nodes_", 1),
    ("collective_puts_", 1),
    // Programs with known bugs (`ginlab museum`). In the first program, the bug is a signal that no fence precedes.
    // Signals of the others request or acknowledge blocks, or announce a put that is complete.
    ("museum_overtaking_thread", 1),
    ("museum_completion_thread", 1),
    ("museum_slot_thread", 1),
    ("museum_source_thread", 1),
    // The ping-pong of bare signals.
    ("shmem_signal", 2),
];

/// Returns, for each add, the backward walk up to a fence.
fn adds(function: &PtxFunction) -> Vec<Walk> {
    let adds = (0..function.statements.len()).filter(|at| function.is(*at, ADD));
    adds.map(|at| function.back(at, &|at| function.is(at, FENCE))).collect()
}

/// Returns the backward walk from a fence up to a barrier of the scope.
fn behind_barrier(function: &PtxFunction, fence: usize) -> Walk {
    function.back(fence, &|at| function.is_barrier(at))
}

/// Returns the violations of the rule in a function.
fn faults(function: &PtxFunction) -> Vec<String> {
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
    if function.scope != SignalScope::Thread && fences.iter().any(|fence| behind_barrier(function, *fence).met_store) {
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

/// Returns the statements that order this function's adds after payload.
fn guards(function: &PtxFunction) -> BTreeSet<usize> {
    let ordered = adds(function).into_iter().filter(|add| !add.met_store);
    let fences: BTreeSet<usize> = ordered.flat_map(|add| add.cuts).collect();
    let barriers = fences
        .iter()
        .filter(|_| function.scope != SignalScope::Thread)
        .flat_map(|fence| behind_barrier(function, *fence).cuts);
    let barriers: Vec<usize> = barriers.collect();
    fences.into_iter().chain(barriers).collect()
}

/// Returns the modules in which puts and signals are stores: all except that of bulk stores.
fn modules() -> impl Iterator<Item = &'static str> {
    kernels_ptx::PTX.modules.iter().filter(|(name, _)| *name != "bulk").map(|(_, text)| *text)
}

#[test]
fn signal_follows_its_bytes() {
    super::passed::once("signal_follows_its_bytes", &[], || {
        let all: Vec<PtxFunction> = modules().flat_map(functions).collect();
        let faults: Vec<String> = all.iter().flat_map(faults).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        // Each scope in each family of kernels must have been checked.
        let names: Vec<(&str, SignalScope)> =
            all.iter().filter(|one| one.any(ADD)).map(|one| (one.name.as_str(), one.scope)).collect();
        for (part, scopes) in [
            ("shmem_put_signal_", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block][..]),
            ("shmem_barrier_", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block]),
            ("signal_check_", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block]),
            ("data_check::", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block]),
            ("collective_messages_", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block]),
            ("collective_puts_", &[SignalScope::Thread, SignalScope::Warp, SignalScope::Block]),
            ("jacobi::exchange::Route::put", &[SignalScope::Block]),
            ("jacobi::halo::send", &[SignalScope::Block]),
            ("jacobi::pieces::send", &[SignalScope::Block]),
            ("jacobi_meet", &[SignalScope::Block]),
        ] {
            let found = |scope: &SignalScope| names.iter().any(|(name, of)| name.contains(part) && of == scope);
            assert!(scopes.iter().all(found), "{part} {scopes:?}: {names:?}");
        }
    });
}

/// Outcome of all mutations of a function: each guard is removed or narrowed.
#[derive(Default)]
struct MutationResult {
    /// Mutated barriers, fences, and adds.
    tried: [usize; 3],
    /// Mutations after which another guard orders the same adds, so the function is still correct.
    covered: Vec<String>,
    /// Mutations that leave an add unordered and that the rule does not report.
    missed: Vec<String>,
}

impl MutationResult {
    fn spoil(&mut self, function: &PtxFunction) {
        let name = &function.name;
        for guard in guards(function) {
            let is_fence = function.is(guard, FENCE);
            let others = if is_fence { &["mov.b32", "fence.acq_rel.gpu"][..] } else { &["mov.b32"] };
            for other in others {
                let mutant = function.with(guard, other);
                if !faults(&mutant).is_empty() {
                    continue;
                }
                let what = format!("{name}: {other} instead of {}", function.mnemonics[guard]);
                if is_covered(function, guard, &mutant) {
                    self.covered.push(what);
                } else {
                    let unordered = adds(function).iter().filter(|add| add.met_store).count();
                    self.missed.push(format!(
                        "{what} leaves an add unordered, and the rule does not report it: does the line of this kernel in UNORDERED of \
                         tests/ptx/order.rs allow more than {unordered} adds?"
                    ));
                }
            }
            self.tried[usize::from(is_fence)] += 1;
        }
        if let Some(add) = (0..function.statements.len()).find(|at| function.is(*at, ADD)) {
            if faults(&function.with(add, NARROW_ADD)).is_empty() {
                self.missed.push(format!("{name}: {NARROW_ADD} is not reported"));
            }
            self.tried[2] += 1;
        }
    }
}

/// Returns whether other guards order all that a guard ordered: every walk that it ended must end elsewhere in the
/// mutant.
fn is_covered(function: &PtxFunction, guard: usize, mutant: &PtxFunction) -> bool {
    let ordered: Vec<usize> = (0..function.statements.len())
        .filter(|at| function.is(*at, ADD) && !function.back(*at, &|at| function.is(at, FENCE)).met_store)
        .collect();
    if function.is(guard, FENCE) {
        return ordered.iter().all(|add| !mutant.back(*add, &|at| mutant.is(at, FENCE)).met_store);
    }
    let fences = ordered.iter().flat_map(|add| function.back(*add, &|at| function.is(at, FENCE)).cuts);
    fences.collect::<BTreeSet<usize>>().iter().all(|fence| !behind_barrier(mutant, *fence).met_store)
}

/// Each barrier and each fence that the rule finds is required, unless another one orders the same adds. If it is
/// removed or narrowed, the rule must report a violation.
#[test]
fn signal_rule_detects_mutations() {
    super::passed::once("signal_rule_detects_mutations", &[], || {
        let mut spoilt = MutationResult::default();
        let all = modules().flat_map(functions).filter(|function| function.any(ADD));
        all.for_each(|function| spoilt.spoil(&function));
        assert!(spoilt.missed.is_empty(), "{:#?}", spoilt.missed);
        let [barriers, fences, adds] = spoilt.tried;
        // There must be something to mutate. (A message has no add of its own over mapped memory.)
        assert!(barriers >= 20 && fences >= 30 && adds >= 25, "{:?}", spoilt.tried);
        // Most guards are the only one for their adds.
        assert!(spoilt.covered.len() < (barriers + fences) / 2, "{:#?}", spoilt.covered);
        eprintln!("{barriers} barriers, {fences} fences and {adds} functions' adds, each spoilt and found");
        eprintln!("covered by another guard: {:?}", spoilt.covered);
    });
}

/// The barrier and the fence of `fence` after a put with a signal: those of the put already order its bytes.
#[test]
fn fence_and_signal_after_put_signal_pass() {
    let relay = functions(include_str!("relay.ptx")).remove(0);
    assert_eq!(faults(&relay), Vec::<String>::new());
    let mut spoilt = MutationResult::default();
    spoilt.spoil(&relay);
    assert_eq!((spoilt.tried, spoilt.missed), ([2, 2, 1], Vec::new()));
    let covered = [
        "mov.b32 instead of bar.sync",
        "mov.b32 instead of fence.acq_rel.sys",
        "fence.acq_rel.gpu instead of fence.acq_rel.sys",
    ];
    assert_eq!(spoilt.covered, covered.map(|what| format!("relay: {what}")));
    // If both fences or both barriers are removed, no other guard covers them.
    for guard in [FENCE, "bar.sync"] {
        let all: Vec<usize> = (0..relay.statements.len()).filter(|at| relay.is(*at, guard)).collect();
        let bare = all.iter().fold(relay.with(all[0], "mov.b32"), |bare, at| bare.with(*at, "mov.b32"));
        assert!(!faults(&bare).is_empty(), "{guard}");
    }
}

/// An entry of [`UNORDERED`] that allows more than a kernel has would hide a missing guard; this must be reported.
#[test]
fn mutation_hidden_by_allowance_is_reported() {
    let mut allowed = functions(&include_str!("relay.ptx").replace("relay", "collective_nodes_relay")).remove(0);
    assert_eq!(faults(&allowed), Vec::<String>::new());
    let mut spoilt = MutationResult::default();
    spoilt.spoil(&allowed);
    assert!(spoilt.missed[0].contains("does the line of this kernel in UNORDERED"), "{:?}", spoilt.missed);
    allowed.name = "relay".into();
    let mut spoilt = MutationResult::default();
    spoilt.spoil(&allowed);
    assert_eq!(spoilt.missed, Vec::<String>::new());
}

/// `quiet` after a put by stores: barrier, fence, then return.
#[test]
fn quiet_fences_preceding_stores() {
    let module = super::modules(&["shmem"]);
    let puts = functions(&module);
    for name in ["shmem_put_thread", "shmem_put_warp", "shmem_put_block"] {
        let put = puts.iter().find(|function| function.name == name).unwrap();
        assert!(!put.unfenced(), "{name}: bytes are not fenced when quiet returns");
        let fences: Vec<usize> = (0..put.statements.len()).filter(|at| put.is(*at, FENCE)).collect();
        for fence in fences {
            let barriers = behind_barrier(put, fence);
            assert!(put.scope == SignalScope::Thread || !barriers.met_store, "{name}: no barrier before the fence");
            assert!(put.with(fence, "mov.b32").unfenced() && put.with(fence, "fence.acq_rel.gpu").unfenced(), "{name}");
            let without = |barrier: &usize| behind_barrier(&put.with(*barrier, "mov.b32"), fence).met_store;
            assert!(
                put.scope == SignalScope::Thread || barriers.cuts.iter().all(without),
                "{name}: a barrier that is not needed"
            );
        }
    }
}
