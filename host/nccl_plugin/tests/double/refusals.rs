//! Results of all calls of the tables for invalid arguments. NCCL passes no such arguments, but a broken or newer
//! version might.

use crate::again::alone;
use crate::kernel::{Card, ContextQueue};
use crate::queues::cards;
use crate::rank::{NcclRank, OK, RegisteredMemory, SIGNALS, SharedRankState, until};
use crate::ranks;
use nccl_ginlab::abi::*;
use nccl_ginlab::settings::{COUNT, FAULT, RAILS, RULE, STRATEGY, TIMEOUT};
use nccl_ginlab::tables::{
    ncclGinPlugin_v14, ncclRmaPlugin_v13, ncclRmaPlugin_v14, ncclRmaPlugin_v15, ncclRmaPlugin_v16,
};
use nccl_ginlab::testing::set_variables;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

const ARGUMENT: NcclResult = NcclResult::ARGUMENT;

#[test]
fn invalid_calls_are_rejected() {
    ranks(1, &[], |rank| {
        let (memory, gone) = (rank.register(64, PTR_HOST, 0), rank.register(64, PTR_HOST, 0));
        let table = &ncclRmaPlugin_v16;
        let mut request = null_mut();
        // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
        unsafe {
            let put = |bytes: usize, to: u64, peer: u32, out: *mut *mut c_void| {
                (table.iput)(rank.context, 0, 0, memory.handle, bytes, to, memory.handle, peer, 0, out)
            };
            assert_eq!(put(8, 57, 0, &mut request), NcclResult::ARGUMENT);
            assert_eq!(put(8, u64::MAX, 0, &mut request), NcclResult::ARGUMENT);
            assert_eq!(put(8, 0, 1, &mut request), NcclResult::ARGUMENT);
            assert_eq!(put(8, 0, 0, null_mut()), NcclResult::ARGUMENT);
            let signal = |offset: u64, operation: u32| {
                let (context, at) = (rank.context, memory.handle);
                (table.iput_signal)(
                    context,
                    0,
                    0,
                    null_mut(),
                    0,
                    0,
                    null_mut(),
                    0,
                    offset,
                    at,
                    1,
                    operation,
                    false,
                    0,
                    &mut request,
                )
            };
            let mut signal = signal;
            assert_eq!(
                (signal(4, SIGNAL_INC), signal(64, SIGNAL_INC), signal(0, 9)),
                (NcclResult::ARGUMENT, NcclResult::ARGUMENT, NcclResult::ARGUMENT)
            );
            let none = null_mut();
            assert_eq!(
                (table.iput)(rank.context, 0, 0, none, 8, 0, memory.handle, 0, 0, &mut request),
                NcclResult::ARGUMENT
            );
            assert_eq!(
                (table.iget)(rank.context, 0, 60, memory.handle, 8, 0, memory.handle, 0, 0, &mut request),
                NcclResult::ARGUMENT
            );
            assert_eq!(
                (table.iput)(none, 0, 0, memory.handle, 8, 0, memory.handle, 0, 0, &mut request),
                NcclResult::ARGUMENT
            );
            let mut handle = null_mut();
            assert_eq!((table.reg_mr_sym)(rank.coll, none, 8, 4, 0, &mut handle), NcclResult::ARGUMENT);
            assert_eq!((table.connect)(rank.plugin, null_mut(), 2, 2, none, &mut handle), NcclResult::ARGUMENT);
            let mut strange = [1u8; 128];
            let (mut listener, mut own) = (null_mut(), [0u8; 128]);
            assert_eq!((table.listen)(rank.plugin, 0, own.as_mut_ptr().cast(), &mut listener), OK);
            let mut pointers = [strange.as_mut_ptr().cast(), own.as_mut_ptr().cast()];
            let joined = (table.connect)(rank.plugin, pointers.as_mut_ptr(), 2, 1, listener, &mut handle);
            assert_eq!((joined, (table.close_listen)(listener)), (NcclResult::REMOTE, OK));
            let mut error = true;
            assert_eq!(((table.query_last_error)(rank.context, &mut error), error), (OK, false));
        }
        rank.leave(vec![memory, gone]);
    });
}

#[test]
fn variables_that_cannot_be_end_at_init() {
    for variables in [[(RAILS, "null")], [(RAILS, "model:p3")], [(STRATEGY, "all")]] {
        set_variables(&variables);
        let mut plugin = null_mut();
        // SAFETY: the call and its arguments are those of NCCL.
        assert_eq!(unsafe { (ncclRmaPlugin_v16.init)(&mut plugin, 1, None) }, NcclResult::USAGE);
    }
}

#[test]
fn differing_or_missing_ranks_fail_at_connect() {
    let meeting = SharedRankState::of(2);
    std::thread::scope(|scope| {
        for (me, rule) in ["count", "own"].into_iter().enumerate() {
            let meeting = &meeting;
            scope.spawn(move || {
                assert_eq!(NcclRank::join(meeting, me, &[(RULE, rule)]).err(), Some(NcclResult::REMOTE))
            });
        }
    });
    let alone = SharedRankState::of(2);
    // The other rank has called `listen`, and does not connect.
    alone.come.fetch_add(1, Ordering::AcqRel);
    assert_eq!(NcclRank::join(&alone, 0, &[(TIMEOUT, "1")]).err(), Some(NcclResult::REMOTE));
}

/// Calls every function that returns a value with a null pointer for it. No object is created, and existing objects
/// remain valid.
#[test]
fn null_result_pointers_are_rejected() {
    ranks(1, &[], |rank| {
        let table = &ncclRmaPlugin_v16;
        let memory = rank.register(64, PTR_HOST, 0);
        let (coll, context, handle) = (rank.coll, rank.context, memory.handle);
        let (mut out, mut own, mut done) = (null_mut(), [0u8; 128], 0);
        let own: *mut c_void = own.as_mut_ptr().cast();
        // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
        unsafe {
            assert_eq!((table.init)(null_mut(), 1, None), ARGUMENT);
            assert_eq!((table.devices)(null_mut()), ARGUMENT);
            assert_eq!((table.get_properties)(0, null_mut()), ARGUMENT);
            assert_eq!((table.get_rma_properties)(coll, null_mut()), ARGUMENT);
            assert_eq!((table.listen)(null_mut(), 0, null_mut(), &mut out), ARGUMENT);
            assert_eq!((table.listen)(null_mut(), 0, own, null_mut()), ARGUMENT);
            let mut listener = null_mut();
            assert_eq!((table.listen)(null_mut(), 0, own, &mut listener), OK);
            assert_eq!((table.connect)(null_mut(), [own].as_mut_ptr(), 1, 0, listener, null_mut()), ARGUMENT);
            assert_eq!((table.close_listen)(listener), OK);
            assert_eq!((table.create_context)(coll, null_mut(), null_mut()), ARGUMENT);
            assert_eq!((ncclRmaPlugin_v13.create_context)(coll, null_mut(), null_mut(), null_mut()), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(coll, own, 64, PTR_HOST, 0, null_mut()), ARGUMENT);
            assert_eq!((table.reg_mr_sym_dma_buf)(coll, own, 64, PTR_HOST, 0, -1, 0, null_mut()), ARGUMENT);
            assert_eq!((ncclRmaPlugin_v13.reg_mr_sym)(coll, own, 64, PTR_HOST, 0, null_mut(), null_mut()), ARGUMENT);
            assert_eq!((table.iput)(context, 0, 0, handle, 8, 0, handle, 0, 0, null_mut()), ARGUMENT);
            let increment = SIGNAL_INC;
            assert_eq!(
                (table.iput_signal)(
                    context,
                    0,
                    0,
                    handle,
                    8,
                    0,
                    handle,
                    0,
                    0,
                    handle,
                    1,
                    increment,
                    true,
                    0,
                    null_mut()
                ),
                ARGUMENT
            );
            assert_eq!((table.iget)(context, 0, 0, handle, 8, 0, handle, 0, 0, null_mut()), ARGUMENT);
            assert_eq!((table.iflush)(context, 0, handle, 0, null_mut()), ARGUMENT);
            assert_eq!((table.query_last_error)(context, null_mut()), ARGUMENT);
            // An invalid test does not lose the request.
            assert_eq!((table.iflush)(context, 0, handle, 0, &mut out), OK);
            assert_eq!((table.test)(coll, out, null_mut()), ARGUMENT);
            assert_eq!(((table.test)(coll, out, &mut done), done), (OK, 1));
        }
        assert_eq!(memory.words, [0; 8]);
        rank.leave(vec![memory]);
    });
}

/// Calls every function that takes a handle with a null handle. Returning a null handle is not an error.
#[test]
fn handles_are_asked_for() {
    ranks(1, &[], |rank| {
        let (table, none) = (&ncclRmaPlugin_v16, null_mut());
        let memory = rank.register(64, PTR_HOST, 0);
        let (coll, context, handle) = (rank.coll, rank.context, memory.handle);
        let (mut out, mut done, mut error) = (null_mut(), 0, false);
        // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
        unsafe {
            assert_eq!((table.create_context)(none, null_mut(), &mut out), ARGUMENT);
            assert_eq!((ncclRmaPlugin_v13.create_context)(none, null_mut(), &mut out, &mut none.clone()), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(none, none, 8, PTR_HOST, 0, &mut out), ARGUMENT);
            assert_eq!((table.dereg_mr_sym)(none, handle), ARGUMENT);
            for (context, source, target) in [(none, handle, handle), (context, none, handle), (context, handle, none)]
            {
                assert_eq!((table.iput)(context, 0, 0, source, 8, 0, target, 0, 0, &mut out), ARGUMENT);
                assert_eq!((table.iget)(context, 0, 0, source, 8, 0, target, 0, 0, &mut out), ARGUMENT);
                assert_eq!((ncclRmaPlugin_v14.iput)(context, 0, 0, source, 8, 0, target, 0, &mut out), ARGUMENT);
                assert_eq!((ncclRmaPlugin_v14.iget)(context, 0, 0, source, 8, 0, target, 0, &mut out), ARGUMENT);
            }
            for (context, signal) in [(none, handle), (context, none)] {
                let (operation, to) = (SIGNAL_ADD, &mut out);
                assert_eq!(
                    (ncclRmaPlugin_v13.iput_signal)(context, 0, 0, none, 0, 0, none, 0, 0, signal, 1, operation, to),
                    ARGUMENT
                );
                assert_eq!(
                    (ncclRmaPlugin_v14.iput_signal)(
                        context, 0, 0, none, 0, 0, none, 0, 0, signal, 1, operation, true, to
                    ),
                    ARGUMENT
                );
                assert_eq!(
                    (ncclRmaPlugin_v15.iput_signal)(
                        context, 0, 0, none, 0, 0, none, 0, 0, signal, 1, operation, true, 0, to
                    ),
                    ARGUMENT
                );
            }
            assert_eq!((table.test)(none, none, &mut done), ARGUMENT);
            assert_eq!((table.query_last_error)(none, &mut error), ARGUMENT);
            for give_back in [table.destroy_context, table.close_coll, table.close_listen, table.finalize] {
                assert_eq!(give_back(none), OK);
            }
            assert_eq!((table.dereg_mr_sym)(coll, none), OK);
            // A null request counts as complete.
            assert_eq!(((table.test)(coll, none, &mut done), done), (OK, 1));
        }
        rank.leave(vec![memory]);
    });
}

/// Checks ranges of source and target, ranks, and memory of another communicator.
#[test]
fn places_are_checked_on_both_sides() {
    ranks(1, &[], |rank| {
        let table = &ncclRmaPlugin_v16;
        let memory = rank.register(64, PTR_HOST, 0);
        let other = NcclRank::join(&SharedRankState::of(1), 0, &[]).unwrap();
        let strangers: Vec<RegisteredMemory> = (0..2).map(|_| other.register(64, PTR_HOST, 0)).collect();
        let (context, handle, stranger) = (rank.context, memory.handle, strangers[1].handle);
        let mut out = null_mut();
        // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
        unsafe {
            let long = u64::MAX - 3;
            for (from, source, to, target, peer) in [
                (60, handle, 0, handle, 0),
                (long, handle, 0, handle, 0),
                (0, handle, 60, handle, 0),
                (0, handle, long, handle, 0),
                (0, handle, 0, handle, 1),
                (0, stranger, 0, handle, 0),
                (0, handle, 0, stranger, 0),
            ] {
                assert_eq!((table.iput)(context, 0, from, source, 8, to, target, peer, 0, &mut out), ARGUMENT);
                assert_eq!((table.iget)(context, 0, from, source, 8, to, target, peer, 0, &mut out), ARGUMENT);
                let (signal, add) = (handle, SIGNAL_ADD);
                assert_eq!(
                    (table.iput_signal)(
                        context, 0, from, source, 8, to, target, peer, 0, signal, 1, add, true, 0, &mut out
                    ),
                    ARGUMENT
                );
            }
            let none = null_mut();
            for (offset, signal, peer) in [(0, stranger, 0), (long - 4, handle, 0), (0, handle, 1)] {
                let inc = SIGNAL_INC;
                assert_eq!(
                    (table.iput_signal)(
                        context, 0, 0, none, 0, 0, none, peer, offset, signal, 1, inc, true, 0, &mut out
                    ),
                    ARGUMENT
                );
            }
        }
        other.leave(strangers);
        rank.leave(vec![memory]);
    });
}

/// Every put and get after a failure is refused, outstanding requests end, and all objects can be released.
#[test]
fn calls_after_failure_are_rejected() {
    ranks(1, &[(FAULT, "error:1")], |rank| {
        let table = &ncclRmaPlugin_v16;
        let memory = rank.register(64, PTR_HOST, SIGNALS);
        let first = rank.put((&memory, 0), 8, (&memory, 8), 0, None);
        until("the failure", || rank.test(first) == (NcclResult::REMOTE, false));
        let (context, handle) = (rank.context, memory.handle);
        let (mut out, mut error) = (null_mut(), false);
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            assert_eq!((table.iput)(context, 0, 0, handle, 8, 8, handle, 0, 0, &mut out), NcclResult::REMOTE);
            assert_eq!((table.iget)(context, 0, 0, handle, 8, 8, handle, 0, 0, &mut out), NcclResult::REMOTE);
            let (none, inc) = (null_mut(), SIGNAL_INC);
            assert_eq!(
                (table.iput_signal)(context, 0, 0, none, 0, 0, none, 0, 0, handle, 1, inc, true, 0, &mut out),
                NcclResult::REMOTE
            );
            assert_eq!(((table.query_last_error)(context, &mut error), error), (OK, true));
        }
        let late = rank.register(64, PTR_HOST, 0);
        rank.leave(vec![memory, late]);
    });
}

/// If the target has registered its memory differently, the target's communicator fails, regardless of the rank that
/// submitted the put.
#[test]
fn differing_memory_is_reported_by_target() {
    for shorter in [true, false] {
        ranks(2, &[(TIMEOUT, "5")], |rank| {
            let source = rank.register(128, PTR_HOST, 0);
            let target = rank.register(if shorter && rank.me == 1 { 64 } else { 128 }, PTR_HOST, 0);
            if !shorter && rank.me == 1 {
                // SAFETY: the call and its arguments are those of NCCL; `leave` gives back only the source.
                assert_eq!(unsafe { (ncclRmaPlugin_v16.dereg_mr_sym)(rank.coll, target.handle) }, OK);
            }
            rank.meeting.meet();
            let mut error = false;
            if rank.me == 0 {
                rank.put((&source, 0), 128, (&target, 0), 1, None);
            } else {
                until("an error", || {
                    // SAFETY: the call and its arguments are those of NCCL.
                    assert_eq!(unsafe { (ncclRmaPlugin_v16.query_last_error)(rank.context, &mut error) }, OK);
                    error
                });
                assert_eq!(target.words, vec![0; target.words.len()]);
            }
            let mut memories = vec![source];
            if shorter || rank.me == 0 {
                memories.push(target);
            }
            rank.leave(memories);
        });
    }
}

#[test]
fn ranks_and_handles_are_checked_before_connecting() {
    set_variables(&[(TIMEOUT, "1")]);
    let table = &ncclRmaPlugin_v16;
    let (mut listener, mut own, mut coll) = (null_mut(), [0u8; 128], null_mut());
    let own: *mut c_void = own.as_mut_ptr().cast();
    // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
    unsafe {
        assert_eq!((table.listen)(null_mut(), 0, own, &mut listener), OK);
        let mut connect = |handles: &mut [*mut c_void], ranks: i32, rank: i32, listener: *mut c_void| {
            (table.connect)(null_mut(), handles.as_mut_ptr(), ranks, rank, listener, &mut coll)
        };
        for (ranks, rank) in [(0, 0), (-1, 0), (1, -1), (1, 1)] {
            assert_eq!(connect(&mut [own], ranks, rank, listener), ARGUMENT, "{rank} of {ranks}");
        }
        assert_eq!(connect(&mut [own], 1, 0, null_mut()), ARGUMENT);
        assert_eq!(connect(&mut [own, null_mut()], 2, 0, listener), ARGUMENT);
        // The number of ranks exceeds the number of signals for slots.
        assert_eq!(connect(&mut [own; 1025], 1025, 0, listener), NcclResult::REMOTE);
        assert_eq!((table.connect)(null_mut(), null_mut(), 1, 0, listener, &mut coll), ARGUMENT);
        assert_eq!((table.close_listen)(listener), OK);
    }
    assert!(coll.is_null());
}

/// If this machine does not have the requested rails, all ranks get an error, and none waits for the other.
#[test]
fn missing_rails_fail_at_connect() {
    let meeting = SharedRankState::of(2);
    std::thread::scope(|scope| {
        for me in 0..2 {
            let meeting = &meeting;
            // No machine has this many rails, and without libfabric there are none at all.
            let variables = [(RAILS, "tcp:nowhere"), (COUNT, "64"), (TIMEOUT, "5")];
            scope.spawn(move || assert_eq!(NcclRank::join(meeting, me, &variables).err(), Some(NcclResult::REMOTE)));
        }
    });
}

/// `listen` reads the variables again, and needs a socket.
#[test]
fn listening_may_fail() {
    alone("refusals::listening_may_fail", Vec::new, || {
        let (mut listener, mut own) = (null_mut(), [0u8; 128]);
        // SAFETY: the call and its arguments are those of NCCL.
        let mut listen =
            || unsafe { (ncclRmaPlugin_v16.listen)(null_mut(), 0, own.as_mut_ptr().cast(), &mut listener) };
        set_variables(&[(RAILS, "null")]);
        assert_eq!(listen(), NcclResult::USAGE);
        set_variables(&[]);
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a local variable to write to, and the second limit is a value to read.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 0, ..before }), 0);
        }
        assert_eq!(listen(), NcclResult::SYSTEM);
        // SAFETY: `before` is a local variable to read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &before) }, 0);
    });
}

/// Type 5: missing and invalid arguments. A refused registration must not use a region number, since all ranks count
/// these identically.
#[test]
fn rejected_queues_leave_no_trace() {
    cards(1, &[], |mut card| {
        let table = &ncclGinPlugin_v14;
        let (coll, mut words) = (card.coll, [0u64; 8]);
        let (data, mut config): (*mut c_void, _) = (words.as_mut_ptr().cast(), Card::config());
        let (mut out, mut window, mut handle) = (null_mut(), null_mut(), null_mut());
        let (none, mut error) = (null_mut(), false);
        // SAFETY: the calls are those of NCCL, with arguments that are valid or are rejected.
        unsafe {
            assert_eq!((table.get_gin_properties)(null_mut()), ARGUMENT);
            assert_eq!((table.get_properties)(0, null_mut()), ARGUMENT);
            assert_eq!((table.create_context)(none, &mut config, &mut out, &mut handle), ARGUMENT);
            assert_eq!((table.create_context)(coll, null_mut(), &mut out, &mut handle), ARGUMENT);
            assert_eq!((table.create_context)(coll, &mut config, null_mut(), &mut handle), ARGUMENT);
            assert_eq!((table.create_context)(coll, &mut config, &mut out, null_mut()), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(none, data, 64, PTR_CUDA, 0, &mut out, &mut window), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(coll, data, 64, 4, 0, &mut out, &mut window), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(coll, data, 64, PTR_CUDA, 0, null_mut(), &mut window), ARGUMENT);
            assert_eq!((table.reg_mr_sym)(coll, data, 64, PTR_CUDA, 0, &mut out, null_mut()), ARGUMENT);
            assert_eq!((table.reg_mr_sym_dma_buf)(coll, data, 64, 4, 0, -1, 0, &mut out, &mut window), ARGUMENT);
            assert_eq!((table.query_last_error)(none, &mut error), ARGUMENT);
            for give_back in
                [table.destroy_context, table.progress, table.close_coll, table.close_listen, table.finalize]
            {
                assert_eq!(give_back(none), OK);
            }
        }
        let memory = card.register(64);
        assert_eq!(card.window(&memory, 0).0.lkey, 0);
        assert_eq!(card.contexts(config), OK);
        assert_eq!(card.poster(0, ContextQueue::Data).sq_size, 512);
        // SAFETY: the call is that of NCCL, with arguments that are valid or are rejected.
        assert_eq!(unsafe { (table.query_last_error)(card.context, null_mut()) }, ARGUMENT);
        card.leave(vec![memory]);
    });
}

/// Queues need GPU memory; without a GPU, the registration made for them is removed again.
#[test]
fn queues_require_gpu() {
    let table = &ncclGinPlugin_v14;
    ranks(1, &[], |rank| {
        let (mut words, mut config) = ([0u64; 8], Card::config());
        let (mut out, mut window, mut handle) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            let data = words.as_mut_ptr().cast();
            assert_eq!((table.create_context)(rank.coll, &mut config, &mut out, &mut handle), NcclResult::SYSTEM);
            let registered = (table.reg_mr_sym)(rank.coll, data, 64, PTR_HOST, 0, &mut out, &mut window);
            assert_eq!((registered, out, handle.is_null()), (NcclResult::SYSTEM, null_mut(), true));
        }
        rank.leave(Vec::new());
    });
}

/// Features of older tables that newer ones lack: device handles of contexts and registrations.
#[test]
fn older_tables_give_handles_that_are_ours() {
    ranks(1, &[], |rank| {
        let (mut words, data_bytes) = (vec![5u64, 0], 16);
        let data: *mut c_void = words.as_mut_ptr().cast();
        let (coll, old) = (rank.coll, &ncclRmaPlugin_v13);
        let (mut context, mut for_kernels, mut request) = (null_mut(), data, null_mut());
        let (mut handle, mut again, mut window) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the calls and their arguments are those of NCCL 2.30.
        unsafe {
            assert_eq!((old.create_context)(coll, null_mut(), &mut context, &mut for_kernels), OK);
            assert!(for_kernels.is_null(), "of type 2 NCCL makes it itself");
            assert_eq!((old.reg_mr_sym)(coll, data, data_bytes, PTR_HOST, 0, &mut handle, &mut window), OK);
            assert_eq!(window, handle);
            assert_eq!((old.reg_mr_sym)(coll, data, data_bytes, 4, 0, &mut again, &mut window), ARGUMENT);
            assert_eq!(window, handle, "nothing is written where nothing was made");
            let with_dma =
                (old.reg_mr_sym_dma_buf)(coll, data, data_bytes, PTR_HOST, 0, -1, 0, &mut again, &mut window);
            assert_eq!((with_dma, window), (OK, again));
            assert_eq!((old.iget)(context, 0, 0, handle, 8, 8, again, 0, &mut request), OK);
        }
        rank.wait(request);
        assert_eq!(words, [5, 5]);
        // SAFETY: the calls and their arguments are those of NCCL 2.30.
        unsafe {
            for handle in [handle, again] {
                assert_eq!((old.dereg_mr_sym)(coll, handle), OK);
            }
            assert_eq!((old.destroy_context)(context), OK);
        }
        rank.leave(Vec::new());
    });
}
