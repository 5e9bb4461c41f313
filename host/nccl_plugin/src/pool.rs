//! The threads that drive rails: few, whatever the number of communicators, and gone when there is none.

use crate::endpoint::Driven;
use crate::process::locked;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is done by a thread, as it comes to it.
pub type Order = Box<dyn FnOnce(&mut Table) + Send>;

/// Turns without anything before the core is offered to others.
const PATIENT_TURNS: u32 = 64;
/// Turns between two looks at orders.
const ORDERS_EVERY: u32 = 32;
/// A thread that has had nothing to do for so long sleeps between its looks; on a machine of few cores others want its core sooner.
const IDLE: Duration = Duration::from_millis(200);
const IDLE_OF_FEW_CORES: Duration = Duration::from_millis(1);
/// How long.
const NAP: Duration = Duration::from_micros(20);
/// What is under way when a communicator is closed may take so long.
const DRAIN: Duration = Duration::from_secs(1);

/// What a thread drives.
#[derive(Default)]
pub struct Table {
    driven: HashMap<u64, Box<dyn Driven>>,
    /// Those that are closed once they are quiet, or late.
    closing: Vec<(u64, Instant, Sender<()>)>,
}

impl Table {
    /// One more.
    pub fn add(&mut self, key: u64, driven: Box<dyn Driven>) {
        self.driven.insert(key, driven);
    }

    /// One of them.
    pub fn get(&mut self, key: u64) -> Option<&mut Box<dyn Driven>> {
        self.driven.get_mut(&key)
    }

    /// Ends one; the sender is dropped when it has ended.
    pub fn close(&mut self, key: u64, told: Sender<()>) {
        self.closing.push((key, Instant::now() + DRAIN, told));
    }

    fn turn(&mut self) -> bool {
        let mut moved = false;
        for driven in self.driven.values_mut() {
            if driven.coll().failure().is_some() {
                continue;
            }
            match driven.turn() {
                Ok(any) => moved |= any,
                Err(why) => {
                    driven.coll().fail(&why);
                    driven.record(false);
                }
            }
        }
        if !self.closing.is_empty() {
            let now = Instant::now();
            let Table { driven, closing } = self;
            closing.retain(|(key, late, _told)| {
                let Some(one) = driven.get_mut(key) else { return false };
                if one.coll().failure().is_none() && !one.is_quiet() && now < *late {
                    return true;
                }
                one.record(true);
                driven.remove(key);
                false
            });
        }
        moved
    }
}

struct Worker {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
    users: usize,
}

static WORKERS: Mutex<Vec<Option<Worker>>> = Mutex::new(Vec::new());

/// One communicator's place among the threads. Dropping it ends the thread that nobody else uses.
pub struct Seat {
    index: usize,
    orders: Sender<Order>,
}

impl Seat {
    /// On the thread of this number, of at most so many.
    ///
    /// # Errors
    /// The system's.
    pub fn take(number: usize, threads: usize) -> Result<Seat, String> {
        let index = number % threads.max(1);
        let mut workers = locked(&WORKERS);
        if workers.len() <= index {
            workers.resize_with(index + 1, || None);
        }
        if workers[index].is_none() {
            let (orders, for_thread) = channel();
            let builder = std::thread::Builder::new().name(format!("ginlab-rails-{index}"));
            let thread =
                builder.spawn(move || serve(&for_thread)).map_err(|error| format!("starting a thread: {error}"))?;
            workers[index] = Some(Worker { orders, thread, users: 0 });
        }
        let Some(worker) = &mut workers[index] else { return Err("no thread".into()) };
        worker.users += 1;
        Ok(Seat { index, orders: worker.orders.clone() })
    }

    /// Has it done by the thread; the answer, or that it has not come in time.
    ///
    /// # Errors
    /// The order's own, or that the thread does not answer.
    pub fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        what: &str,
        order: impl FnOnce(&mut Table) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answers) = channel();
        let order = move |table: &mut Table| {
            // Whoever has asked may have gone.
            let _ = answer.send(order(table));
        };
        self.orders.send(Box::new(order)).map_err(|_| format!("{what}: the thread of the rails has ended"))?;
        match answers.recv_timeout(timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{what}: the thread of the rails has not answered for {timeout:?}"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("{what}: the thread of the rails has ended")),
        }
    }

    /// Ends one of the thread's communicators, and waits for that.
    pub fn close(&self, key: u64, timeout: Duration) {
        let (told, ended) = channel();
        if self.orders.send(Box::new(move |table| table.close(key, told))).is_ok() {
            // Nothing is sent: it ends by being dropped.
            let _ = ended.recv_timeout(timeout);
        }
    }
}

impl Drop for Seat {
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
        // The thread ends with the last sender, and ours is one of them.
        self.orders = channel().0;
        // A thread that hangs in a provider cannot be ended: it is left behind after a while.
        let late = Instant::now() + 2 * DRAIN;
        while !thread.is_finished() && Instant::now() < late {
            std::thread::yield_now();
        }
        if thread.is_finished() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

fn serve(orders: &Receiver<Order>) {
    let mut table = Table::default();
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
                order(&mut table);
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
        // An order ends the nap.
        match orders.recv_timeout(NAP) {
            Ok(order) => {
                order(&mut table);
                (empty, idle_since) = (0, None);
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
