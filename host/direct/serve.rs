//! What the card does at one queue.

use crate::memory::QueueMemory;
use cuda_std::memory::{load_acquire_host_u32, load_acquire_host_u64, load_relaxed_sys_words, store_release_host_u64};
use efa_queue::completion::Sent;
use efa_queue::request::{self, Body, Request};
use efa_queue::{Local, Operation, Remote, Status, rules};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// In which order requests end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As they were posted, at once.
    #[default]
    Posted,
    /// Any, by this seed, with up to so many held back.
    Any(u64, usize),
}

/// What the card does wrong, for tests. Requests are named by their number.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// These end with this status.
    pub fail: Vec<(u64, u8)>,
    /// These never end.
    pub lose: Vec<u64>,
    /// These end twice.
    pub twice: Vec<u64>,
    /// From this one on the card does nothing any more.
    pub dead: Option<u64>,
    /// With this one's completion the completion queue is a lap ahead of who reads it.
    pub overrun: Option<u64>,
    /// The card takes fewer requests that are not rung for than the kernel was told.
    pub batch: Option<u32>,
}

/// Registered memory: by key, first byte and length.
#[derive(Clone, Debug, Default)]
pub struct Regions(pub BTreeMap<u32, (u64, u64)>);

impl Regions {
    fn covers(&self, key: u32, address: u64, bytes: u64) -> bool {
        self.0
            .get(&key)
            .is_some_and(|(first, length)| address >= *first && bytes <= *length && address - first <= length - bytes)
    }
}

/// What the card has seen of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Requests that were rung for and taken.
    pub requests: u64,
    /// Why it has served the queue no more: what a kernel has done that no card takes, or what it was told.
    pub wrong: Option<String>,
}

/// The card's side of a queue.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    queue: &'a QueueMemory,
    order: Order,
    faults: &'a Faults,
    /// `None`: the null card, which looks at a request's first word alone.
    regions: Option<&'a Regions>,
    seen: u64,
    /// Completions written.
    written: u64,
    /// Requests that have ended well.
    good: u64,
    held: Vec<(u64, Status)>,
    random: u64,
    /// What was wrong, and so the queue is served no more.
    wrong: &'a OnceLock<String>,
}

impl<'a> Side<'a> {
    pub fn new(
        (queue, wrong): (&'a QueueMemory, &'a OnceLock<String>),
        order: Order,
        faults: &'a Faults,
        regions: Option<&'a Regions>,
    ) -> Side<'a> {
        let begun = queue.options().counter;
        let random = if let Order::Any(seed, _) = order { seed } else { 0 };
        let held = Vec::new();
        Side { queue, order, faults, regions, seen: begun, written: begun, good: begun, held, random, wrong }
    }

    /// Looks at the doorbell; whether there was something to do.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let bell = load_acquire_host_u32(self.queue.doorbell());
        let mut moved = false;
        if bell as u16 != self.seen as u16 && self.wrong.get().is_none() {
            self.rung(bell);
            moved = true;
        } else if self.faults.batch.is_some() && self.wrong.get().is_none() {
            self.check_batch();
        }
        moved | self.release()
    }

    fn rung(&mut self, bell: u32) {
        let options = self.queue.options();
        // Several doorbells look like one.
        let to = match rules::rung(self.seen, self.written, bell, options.depth, options.depth) {
            Ok(to) => to,
            Err(refused) => return self.refuse(format!("doorbell {bell} behind {}: {refused:?}", self.seen)),
        };
        let quick = self.order == Order::Posted && self.regions.is_none() && self.is_faultless();
        for number in self.seen..to {
            if self.faults.dead.is_some_and(|dead| number >= dead) {
                let _ = self.wrong.set(format!("dead from request {number} on, as it was told"));
                break;
            }
            // Behind the acquire of the doorbell: the request is there, or it was not stored before.
            let words = load_relaxed_sys_words(self.queue.slot(number), 0).0;
            if request::phase(words[0]) != rules::send_phase(number, options.depth) || words[0] as u16 != number as u16
            {
                return self.refuse(format!("request {number} is not in its slot: its first word is {:#x}", words[0]));
            }
            if quick {
                self.complete(number, words[0], Status::Ok as u8);
            } else if let Err(text) = self.serve(number, &words) {
                return self.refuse(text);
            }
        }
        self.seen = to;
        self.count();
        self.check_batch();
    }

    /// Refuses requests that are written further ahead of the doorbell than a batch.
    fn check_batch(&mut self) {
        let options = self.queue.options();
        let most = self.faults.batch.unwrap_or(options.max_batch);
        let number = self.seen + u64::from(most);
        // Acquire: whoever has written it has rung for what comes `max_batch` before it, and that is seen below.
        let first = load_acquire_host_u64(&self.queue.slot(number)[0]);
        let bell = load_acquire_host_u32(self.queue.doorbell());
        if rules::is_written(first, number, options.depth) && bell as u16 == self.seen as u16 {
            self.refuse(format!("request {number} is written, and the doorbell says {bell}: batches of {most}"));
        }
    }

    fn is_faultless(&self) -> bool {
        self.faults.fail.is_empty()
            && self.faults.lose.is_empty()
            && self.faults.twice.is_empty()
            && self.faults.overrun.is_none()
    }

    /// Does what a request says.
    fn serve(&mut self, number: u64, words: &[u64]) -> Result<(), String> {
        let request = Request::decode(words).map_err(|why| format!("request {number}: {why:?}"))?;
        let told = self.faults.fail.iter().find(|(at, _)| *at == number).map(|(_, code)| *code);
        let status = match told {
            Some(code) => {
                self.complete(number, words[0], code);
                return Ok(());
            }
            None => self.transfer(&request),
        };
        if self.faults.lose.contains(&number) {
            return Ok(());
        }
        self.held.push((number, status));
        if self.faults.twice.contains(&number) {
            self.held.push((number, status));
        }
        Ok(())
    }

    fn transfer(&self, request: &Request) -> Status {
        let (Some(regions), Body::Memory(local, remote)) = (self.regions, request.body) else { return Status::Ok };
        let Local { address, length, key } = local;
        if length > request::MOST_BYTES {
            return Status::LocalLength;
        }
        if !regions.covers(key, address, length.into()) {
            return Status::LocalKey;
        }
        let Remote { address: there, key: theirs, .. } = remote;
        // Nobody asks whether a write of nothing lies in a region: it is what a signal by itself is.
        if length > 0 && !regions.covers(theirs, there, length.into()) {
            return Status::RemoteAddress;
        }
        let (from, to) = if request.operation == Operation::Read { (there, address) } else { (address, there) };
        // SAFETY: both ranges lie in memory that was registered for this, which is there while the card is; whoever posts a request leaves its
        // bytes alone until it has ended.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length as usize) };
        Status::Ok
    }

    /// Ends requests that are held: all, or one that the seed names while there are many, or nobody asks.
    fn release(&mut self) -> bool {
        let Order::Any(_, most) = self.order else {
            let held = std::mem::take(&mut self.held);
            let some = !held.is_empty();
            held.into_iter().for_each(|(number, status)| self.complete(number, 0, status as u8));
            if some {
                self.count();
            }
            return some;
        };
        if self.held.is_empty() {
            return false;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chosen = (self.random >> 33) as usize;
        // Held back for a while: until there are many, and in one turn of four in any case.
        if self.held.len() >= most || chosen.is_multiple_of(4) {
            let (number, status) = self.held.swap_remove(chosen / 4 % self.held.len());
            self.complete(number, 0, status as u8);
            self.count();
        }
        true
    }

    /// Writes a completion. Its first word, which has the phase, comes last.
    #[inline]
    fn complete(&mut self, number: u64, first: u64, status: u8) {
        let operation = Operation::of((first >> 16 & 0xf) as u8).unwrap_or(Operation::Write);
        let options = self.queue.options();
        if self.faults.overrun == Some(number) {
            self.written += u64::from(options.completions);
        }
        let phase = rules::completion_phase(self.written, options.completions);
        let words = Sent { id: number & 0xffff, status, operation, pair: 7 }.words(phase);
        let entry = self.queue.completion(self.written);
        store_release_host_u64(&entry[1], words[1]);
        // Release: whoever acquires it sees the bytes of a read.
        store_release_host_u64(&entry[0], words[0]);
        self.written += 1;
        self.good += u64::from(status == 0);
    }

    /// What has ended well, where somebody counts. Release: as for a completion.
    #[inline]
    fn count(&self) {
        store_release_host_u64(self.queue.counter(), self.good & rules::COUNTER_MASK);
    }

    /// The queue pair is in error: the next request says so, and nothing more happens.
    fn refuse(&mut self, text: String) {
        self.complete(self.seen, 0, Status::QueuePair as u8);
        // The first is what matters.
        let _ = self.wrong.set(text);
    }

    /// What it has seen.
    pub fn found(self) -> Found {
        Found { requests: self.seen - self.queue.options().counter, wrong: self.wrong.get().cloned() }
    }
}
