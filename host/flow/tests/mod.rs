//! Tests of operations over scripted rails.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod null;
mod posting;
mod ways;

use super::{Flow, Offer, Operation, Region, Target};
use ginlab_cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab_fabric::testing::scripted::{Closed, RailScript, Scripted};
use ginlab_fabric::{Access, Completion};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

const AMPLE: Duration = Duration::from_secs(10);
/// Timeout for tests that do not expect a stall. Dropping a flow waits this long for operations that a test has left
/// posted.
const SOON: Duration = Duration::from_millis(1);
const SPACE: u64 = 1 << 16;
/// Longest transfer of a scripted rail.
const LONGEST: u64 = 1 << 14;

/// A flow over scripted rails with one region, and itself as peer 0. (The rails use index `n + 7` for peer `n`.)
struct Bench {
    flow: Flow<Scripted>,
    region: Region<Scripted>,
    offer: Offer,
    target: Target,
    rails: Vec<Rc<RefCell<RailScript>>>,
    closed: Closed,
}

fn bench(rails: usize, timeout: Duration) -> Bench {
    let closed = Closed::default();
    let scripts: Vec<_> = (0..rails).map(|_| Rc::new(RefCell::new(RailScript::default()))).collect();
    let open = |(number, script)| Scripted::new(format!("rail {number}"), LONGEST, script, &closed);
    let flow = Flow::new(scripts.iter().enumerate().map(open).collect(), timeout);
    // With this limit, one poll of a future is one poll of the rails.
    flow.poll_at_most(1);
    let (device, _) = Device::open(DeviceChoice::Emulated, 0).unwrap();
    let region = flow.register(device.allocate(MemoryLocation::Host, SPACE as usize).unwrap(), Access::ALL).unwrap();
    let offer = flow.offer(&[&region]).unwrap();
    let target = Target::new(flow.add_peer(&offer).unwrap(), &offer, 0).unwrap();
    Bench { flow, region, offer, target, rails: scripts, closed }
}

impl Bench {
    fn write(&self, bytes: u64) -> Operation<Scripted> {
        self.flow.write_all(&self.region, 0, &self.target, 0, bytes)
    }

    /// Adds completions that rail 0 returns at the next poll.
    fn ready(&self, completions: impl IntoIterator<Item = Completion>) {
        self.rails[0].borrow_mut().ready.extend(completions);
    }

    fn done(&self, tokens: impl IntoIterator<Item = u64>) {
        self.ready(tokens.into_iter().map(|token| Completion::Done { token }));
    }

    /// Returns the tokens of the writes that a rail has accepted.
    fn tokens(&self, rail: usize) -> Vec<u64> {
        self.rails[rail].borrow().written.iter().map(|transfer| transfer.token).collect()
    }

    /// Returns the sizes in bytes of the writes that each rail has accepted.
    fn written(&self) -> Vec<Vec<u64>> {
        self.rails.iter().map(|rail| rail.borrow().written.iter().map(|transfer| transfer.bytes).collect()).collect()
    }
}

/// A waker that counts its calls.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn times(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Polls a future once.
fn look<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&woken.clone().into()))
}

/// Returns the result of a future that is complete.
#[track_caller]
fn result<F: Future + Unpin>(mut future: F) -> F::Output {
    match look(&mut future, &Arc::default()) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it has no result yet"),
    }
}
