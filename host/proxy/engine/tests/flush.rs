//! Tests of NIC writes to GPU memory that does not order them: they are flushed after the poll and before completions
//! are processed.

use super::{Bench, SOON, put};
use crate::engine::{EngineError, SignalRule};
use crate::signal_order::SignalWords;
use cuda_std::memory::{Word, load_acquire_host_u64};
use ginlab_cuda::{DeviceError, Flush};
use ginlab_fabric::Completion;
use kernels::command::{SIGNALS, signal_immediate};
use std::sync::{Arc, Mutex};

/// Signal words that the test's flush can also read.
fn words() -> &'static [Word] {
    Box::leak((0..SIGNALS).map(|_| Word::new(0)).collect())
}

#[test]
fn flush_follows_poll_and_precedes_count_and_watermark() {
    let mut bench = Bench::new(1, 8, SOON);
    let words = words();
    // SAFETY: the slice has `SIGNALS` words and is leaked, so it lives as long as the process.
    let at = unsafe { SignalWords::at(words.as_ptr()) };
    bench.engine.set_signals(SignalRule { me: 1, ranks: 2, words: at, ..SignalRule::default() }).unwrap();
    // At each flush: number of polls of the rail, and signals counted.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let polls = Arc::new(Mutex::new(0));
    let polled = polls.clone();
    bench.engine.set_flush(Some(Flush::by(move || {
        noted.lock().unwrap().push((*polled.lock().unwrap(), load_acquire_host_u64(&words[7])));
        Ok(())
    })));
    bench.submit(put(0, 0, 8));
    bench.pump();
    let turn = |bench: &mut Bench| {
        *polls.lock().unwrap() += 1;
        bench.progress().unwrap();
    };
    // Without completions nothing is flushed.
    turn(&mut bench);
    assert_eq!(*seen.lock().unwrap(), []);
    // One flush for a batch of several completions, and none for the next poll.
    let signal = || Completion::Immediate { value: signal_immediate(7, 1) };
    bench.rails[0].borrow_mut().ready.extend([signal(), signal(), Completion::Done { token: 0 }]);
    assert_eq!(bench.engine.watermark(), 0);
    turn(&mut bench);
    assert_eq!(*seen.lock().unwrap(), [(2, 0)], "in the turn that polled them, before they were counted");
    assert_eq!((bench.engine.watermark(), load_acquire_host_u64(&words[7])), (1, 2));
    turn(&mut bench);
    bench.rails[0].borrow_mut().ready.push(signal());
    turn(&mut bench);
    assert_eq!(*seen.lock().unwrap(), [(2, 0), (4, 2)]);
}

#[test]
fn failed_flush_reports_no_completion() {
    let mut bench = Bench::new(1, 8, SOON);
    let mut fails = true;
    bench.engine.set_flush(Some(Flush::by(move || match std::mem::take(&mut fails) {
        true => Err(DeviceError::Missing("as the test says".into())),
        false => Ok(()),
    })));
    bench.submit(put(0, 0, 8));
    bench.submit(put(0, 0, 8));
    bench.pump();
    let immediate = Completion::Immediate { value: signal_immediate(7, 1) };
    bench.rails[0].borrow_mut().ready.extend([immediate, Completion::Done { token: 0 }]);
    let error = bench.progress().unwrap_err();
    assert!(matches!(error, EngineError::Flush(_)), "{error}");
    assert_eq!((bench.engine.watermark(), bench.engine.signals()[7]), (0, 0));
    // The NIC has completed the transfer, so the engine does not wait for it.
    assert_eq!(bench.engine.posted(), 1);
    bench.complete(&[1]);
    assert_eq!(bench.progress(), Ok(true));
    assert_eq!((bench.engine.watermark(), bench.engine.posted()), (0, 0), "the first one has never been told");
}
