//! Threads that drive rails: a small number for any number of communicators. The threads exit when there is no
//! communicator.

use crate::coll::Coll;
use crate::endpoint::Driven;
use crate::process::locked;
use ginlab_base::limits::explain;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A function that the thread runs between two iterations.
pub type PoolTask = Box<dyn FnOnce(&mut CommunicatorTable) + Send>;

/// Number of iterations without progress after which the thread yields its core.
const PATIENT_TURNS: u32 = 64;
/// Number of iterations between two checks for orders.
const ORDERS_EVERY: u32 = 32;
/// Time without progress after which the thread sleeps between iterations. It is shorter on a machine with few cores,
/// where other threads need the core sooner.
const IDLE: Duration = Duration::from_millis(200);
const IDLE_OF_FEW_CORES: Duration = Duration::from_millis(1);
/// Time of one sleep.
const NAP: Duration = Duration::from_micros(20);
/// Time within which operations in progress must complete when a communicator is closed.
const DRAIN: Duration = Duration::from_secs(1);
/// Reason of the failure of a communicator whose work has panicked.
const MISTAKE: &str = "a bug of the plugin (see above)";

/// Communicators that one thread drives, by key.
#[derive(Default)]
pub struct CommunicatorTable {
    driven: HashMap<u64, Box<dyn Driven>>,
    /// Communicators to close once they are settled or their deadline has passed.
    closing: Vec<(u64, Instant, Sender<()>)>,
}

impl CommunicatorTable {
    /// Adds a communicator.
    pub fn add(&mut self, key: u64, driven: Box<dyn Driven>) {
        self.driven.insert(key, driven);
    }

    /// Returns a communicator; `None` if it has been closed.
    pub fn get(&mut self, key: u64) -> Option<&mut Box<dyn Driven>> {
        self.driven.get_mut(&key)
    }

    /// Starts closing a communicator. Drops `told` when it is closed.
    pub fn close(&mut self, key: u64, told: Sender<()>) {
        self.closing.push((key, Instant::now() + DRAIN, told));
    }

    fn turn(&mut self) -> bool {
        let mut moved = false;
        for driven in self.driven.values_mut() {
            if driven.coll().failure().is_some() {
                continue;
            }
            let coll = driven.coll().clone();
            let turned = guarded(|| {
                driven.turn().inspect_err(|why| {
                    coll.fail(why);
                    driven.record(false);
                })
            });
            match turned {
                Some(Ok(any)) => moved |= any,
                Some(Err(_)) => {}
                None => coll.fail(MISTAKE),
            }
        }
        if !self.closing.is_empty() {
            let now = Instant::now();
            let CommunicatorTable { driven, closing } = self;
            closing.retain(|(key, late, _told)| {
                let Some(one) = driven.get_mut(key) else { return false };
                let coll = one.coll().clone();
                // A communicator that panics is treated as settled.
                let waits = || coll.failure().is_none() && !one.is_settled() && now < *late;
                if guarded(waits) == Some(true) {
                    return true;
                }
                if let Some(one) = driven.remove(key) {
                    end(one, &coll);
                }
                false
            });
        }
        moved
    }
}

/// Drops a communicator. A communicator that has panicked is leaked, because its rails may still read and write its
/// memory.
fn end(one: Box<dyn Driven>, coll: &Coll) {
    let has_panicked = coll.failure() == Some(MISTAKE);
    let mut one = std::mem::ManuallyDrop::new(one);
    if has_panicked || guarded(|| one.record(true)).is_none() {
        return;
    }
    guarded(move || drop(std::mem::ManuallyDrop::into_inner(one)));
}

/// Runs part of a communicator's work. Returns `None` if it panics, so that the thread can continue with other
/// communicators.
fn guarded<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}

struct Worker {
    orders: Sender<PoolTask>,
    thread: JoinHandle<()>,
    users: usize,
}

static WORKERS: Mutex<Vec<Option<Worker>>> = Mutex::new(Vec::new());

/// One communicator's share of a thread. Dropping it ends the thread if no other communicator uses it.
pub struct WorkerSlot {
    index: usize,
    orders: Sender<PoolTask>,
}

impl WorkerSlot {
    /// Uses thread `number` modulo `threads`, and starts it if it is not running.
    ///
    /// # Errors
    /// Returns the system's error if the thread cannot be started.
    pub fn take(number: usize, threads: usize) -> Result<WorkerSlot, String> {
        let index = number % threads.max(1);
        let mut workers = locked(&WORKERS);
        if workers.len() <= index {
            workers.resize_with(index + 1, || None);
        }
        if workers[index].is_none() {
            let (orders, for_thread) = channel();
            let builder = std::thread::Builder::new().name(format!("ginlab-rails-{index}"));
            let thread = builder
                .spawn(move || serve(&for_thread))
                .map_err(|error| format!("cannot start a thread: {}", explain(&error)))?;
            workers[index] = Some(Worker { orders, thread, users: 0 });
        }
        let Some(worker) = &mut workers[index] else { return Err("no thread".into()) };
        worker.users += 1;
        Ok(WorkerSlot { index, orders: worker.orders.clone() })
    }

    /// Runs `order` on the thread and returns its result.
    ///
    /// # Errors
    /// Returns the order's error, or an error if the thread does not respond within `timeout`.
    pub fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        what: &str,
        order: impl FnOnce(&mut CommunicatorTable) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answers) = channel();
        let order = move |table: &mut CommunicatorTable| {
            // The caller may have timed out; ignore errors.
            let _ = answer.send(order(table));
        };
        self.orders.send(Box::new(order)).map_err(|_| format!("{what}: the rails thread exited"))?;
        match answers.recv_timeout(timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{what}: the rails thread did not answer within {timeout:?}"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("{what}: the rails thread exited")),
        }
    }

    /// Closes a communicator of the thread, and waits up to `timeout` until it is closed.
    pub fn close(&self, key: u64, timeout: Duration) {
        let (told, ended) = channel();
        if self.orders.send(Box::new(move |table| table.close(key, told))).is_ok() {
            // The channel is disconnected when the sender is dropped; no message is sent.
            let _ = ended.recv_timeout(timeout);
        }
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        let mut workers = locked(&WORKERS);
        let Some(Some(worker)) = workers.get_mut(self.index) else { return };
        worker.users -= 1;
        if worker.users > 0 {
            return;
        }
        let Some(Worker { orders, thread, .. }) = workers[self.index].take() else { return };
        drop(workers);
        drop(orders);
        // The thread exits when all senders are dropped, one of which is `self.orders`.
        self.orders = channel().0;
        // A thread that is blocked in a provider cannot be ended, and is left running after some time.
        let late = Instant::now() + 2 * DRAIN;
        while !thread.is_finished() && Instant::now() < late {
            std::thread::yield_now();
        }
        if thread.is_finished() {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }
}

fn serve(orders: &Receiver<PoolTask>) {
    let mut table = CommunicatorTable::default();
    let (mut turns, mut empty) = (0u32, 0u32);
    let mut idle_since: Option<Instant> = None;
    let has_few_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 4);
    let idle = if has_few_cores { IDLE_OF_FEW_CORES } else { IDLE };
    loop {
        let moved = table.turn();
        turns = turns.wrapping_add(1);
        if moved {
            (empty, idle_since) = (0, None);
        } else {
            empty = empty.saturating_add(1);
        }
        let patient = empty < PATIENT_TURNS;
        if patient && !turns.is_multiple_of(ORDERS_EVERY) {
            std::hint::spin_loop();
            continue;
        }
        match orders.try_recv() {
            Ok(order) => {
                guarded(|| order(&mut table));
                (empty, idle_since) = (0, None);
                continue;
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) if patient => continue,
            Err(TryRecvError::Empty) => {}
        }
        let since = *idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() < idle {
            std::thread::yield_now();
            continue;
        }
        // An order ends the sleep.
        match orders.recv_timeout(NAP) {
            Ok(order) => {
                guarded(|| order(&mut table));
                (empty, idle_since) = (0, None);
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointInfo;
    use crate::queues::Arena;
    use crate::settings::Settings;
    use crate::wire::ZoneLayout;
    use std::sync::Arc;

    /// Panics in each call if `panics` is set.
    struct Broken {
        coll: Arc<Coll>,
        /// Receives `panics` in each iteration.
        turns: Sender<bool>,
        panics: bool,
    }

    impl Driven for Broken {
        fn connect(&mut self, _peers: &[EndpointInfo]) -> Result<(), String> {
            Ok(())
        }

        fn turn(&mut self) -> Result<bool, String> {
            let _ = self.turns.send(self.panics);
            assert!(!self.panics, "a mistake, on purpose");
            Ok(false)
        }

        fn is_settled(&self) -> bool {
            assert!(!self.panics, "a mistake, on purpose");
            true
        }

        fn coll(&self) -> &Arc<Coll> {
            &self.coll
        }

        fn record(&mut self, _ended: bool) {
            assert!(!self.panics, "a mistake, on purpose");
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            assert!(!self.panics, "a mistake, on purpose");
        }
    }

    #[test]
    fn panic_fails_its_communicator_and_no_other() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let coll = || {
            let settings = Arc::new(Settings::read(&|_| None).expect("no variables"));
            let layout = ZoneLayout::of(1).expect("one rank");
            Arc::new(Coll::new(0, layout, 0, settings, Arena::new(None, true)))
        };
        let (broken, whole) = (coll(), coll());
        let (turns, seen) = channel();
        // A separate thread: no other test uses this number.
        let seat = WorkerSlot::take(900, 1000).expect("a thread");
        for (key, coll, panics) in [(1, &broken, true), (2, &whole, false)] {
            let (coll, turns) = (coll.clone(), turns.clone());
            let add = move |table: &mut CommunicatorTable| {
                table.add(key, Box::new(Broken { coll, turns, panics }));
                Ok(())
            };
            seat.ask(PATIENCE, "adding", add).expect("a thread that goes on");
        }
        let late = Instant::now() + PATIENCE;
        while broken.failure().is_none() {
            assert!(Instant::now() < late, "no failure");
            std::thread::yield_now();
        }
        assert_eq!(broken.failure(), Some(MISTAKE));
        // An order that panics does not affect other orders.
        let panics = seat.ask(PATIENCE, "a panic", |_| -> Result<(), String> { panic!("a mistake, on purpose") });
        assert!(panics.is_err());
        let mut before: Vec<bool> = seen.try_iter().collect();
        let next = seen.recv_timeout(PATIENCE).expect("the other communicator goes on");
        assert_eq!(whole.failure(), None);
        // A communicator that has failed is not driven again.
        before.push(next);
        assert_eq!(before.iter().filter(|panics| **panics).count(), 1);
        for key in [1, 2] {
            seat.close(key, PATIENCE);
        }
        assert!(seat.ask(PATIENCE, "looking", |table| Ok(table.driven.is_empty())).expect("a thread"));
    }
}
