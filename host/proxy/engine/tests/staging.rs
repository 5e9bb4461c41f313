//! Tests of commands whose bytes are copied before they are posted.

use super::{Bench, SOON, put};
use crate::engine::EngineError;
use crate::stage::Stage;
use ginlab_cuda::{DeviceError, OrderedCopies};
use kernels::command::{Command, Opcode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Copies that finish when the test requests it.
#[derive(Debug, Default)]
struct CopyState {
    started: Vec<(u64, u64, usize)>,
    finished: VecDeque<Result<usize, DeviceError>>,
}

#[derive(Clone, Debug, Default)]
struct Copier(Arc<Mutex<CopyState>>);

impl OrderedCopies for Copier {
    unsafe fn start(&mut self, destination: u64, source: u64, bytes: usize) -> Result<(), DeviceError> {
        self.0.lock().unwrap().started.push((destination, source, bytes));
        Ok(())
    }

    fn finished(&mut self) -> Result<usize, DeviceError> {
        self.0.lock().unwrap().finished.pop_front().unwrap_or(Ok(0))
    }
}

impl Copier {
    fn finish(&self, count: Result<usize, DeviceError>) {
        self.0.lock().unwrap().finished.push_back(count);
    }

    fn started(&self) -> Vec<(u64, u64, usize)> {
        self.0.lock().unwrap().started.clone()
    }
}

/// Creates an engine whose region 0 is copied from address 5000 to address 1000.
fn bench(timeout: Duration) -> (Bench, Copier) {
    let copier = Copier::default();
    // SAFETY: these copies access no memory.
    let stage = unsafe { Stage::new(copier.clone(), 5000, 1000) };
    (Bench::with(1, 64, timeout, Some(stage)), copier)
}

#[test]
fn command_is_posted_after_staging_copy() {
    let (mut bench, copier) = bench(Duration::ZERO);
    bench.submit(put(10, 20, 30));
    bench.submit(Command { opcode: Opcode::PutSignal, immediate: 4, ..put(40, 50, 60) });
    bench.submit(put(1, 2, 3));
    assert_eq!(copier.started(), [(1010, 5010, 30), (1040, 5040, 60), (1001, 5001, 3)]);
    bench.pump();
    assert!(bench.written(0).is_empty());
    assert_eq!(bench.engine.check_stall(), Ok(()));
    assert!(
        bench.engine.state().contains(" 0 transfers posted but not complete, 3 in staging"),
        "{}",
        bench.engine.state()
    );
    copier.finish(Ok(2));
    bench.pump();
    let posted: Vec<_> =
        bench.written(0).iter().map(|t| (t.token, t.local_offset, t.remote_offset, t.immediate)).collect();
    assert_eq!(posted, [(0, 10, 20, None), (1, 40, 50, Some(4))]);
    assert_eq!(bench.engine.check_stall(), Ok(()), "a copy that ends is a move");
    // A larger number of finished copies than started ones would be an error of the driver.
    copier.finish(Ok(7));
    bench.pump();
    assert_eq!(bench.written(0).len(), 3);
    assert!(bench.engine.state().contains("0 in staging"));
}

#[test]
fn empty_ones_are_not_copied() {
    let (mut bench, copier) = bench(SOON);
    bench.submit(put(0, 0, 0));
    bench.submit(Command { opcode: Opcode::PutSignal, immediate: 4, ..put(0, 0, 0) });
    bench.pump();
    assert_eq!((bench.engine.watermark(), bench.written(0).len(), copier.started().len()), (1, 1, 0));
}

#[test]
fn unread_staging_copies_are_skipped() {
    let copier = Copier::default();
    let needed = Arc::new(AtomicBool::new(false));
    // SAFETY: these copies access no memory.
    let stage = unsafe { Stage::new(copier.clone(), 5000, 1000) }.only_while(needed.clone());
    let mut bench = Bench::with(1, 64, SOON, Some(stage));
    bench.submit(put(0, 0, 8));
    bench.pump();
    assert_eq!((bench.written(0).len(), copier.started().len()), (1, 0));
    needed.store(true, Ordering::Relaxed);
    bench.submit(put(0, 0, 8));
    bench.pump();
    assert_eq!((bench.written(0).len(), copier.started().len()), (1, 1));
}

#[test]
fn staged_get_is_rejected_and_failed_copy_reported() {
    let (mut bench, copier) = bench(SOON);
    let get = Command { opcode: Opcode::Get, source_region: 1, destination_region: 0, ..put(0, 0, 8) };
    assert!(bench.engine.submit(&get).unwrap_err().to_string().contains("gets into staged regions"));
    // A get into a region without staging is posted directly.
    bench.submit(Command { destination_region: 1, ..get });
    bench.pump();
    assert_eq!((bench.rails[0].borrow().read.len(), copier.started().len()), (1, 0));
    bench.submit(put(0, 0, 8));
    copier.finish(Err(DeviceError::Refused("no copy today".into())));
    let error = bench.engine.pump(&mut ()).unwrap_err();
    assert!(matches!(error, EngineError::Staging(_)) && error.to_string().contains("no copy today"), "{error}");
}
