//! Processing of one queue by the software NIC.

use super::memory::QueueMemory;
use cuda_std::memory::{load_relaxed_sys_words, store_release_host_u64};
use efa_queue::completion::Sent;
use efa_queue::intake::{Intake, Refusal};
use efa_queue::request::{self, DecodedRequest, RequestData};
use efa_queue::{CompletionStatus, EfaOperation, Local, Remote, rules};
use ginlab_base::random::Random;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Order in which requests complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionOrder {
    /// Immediately, in the order in which they were posted.
    #[default]
    Posted,
    /// Random order, determined by a seed and the maximum number of requests that are held back.
    Any(u64, usize),
}

/// Faults to inject, for tests. Requests are identified by their number.
#[derive(Clone, Debug, Default)]
pub struct QueueFaults {
    /// Requests that complete with this status.
    pub fail: Vec<(u64, u8)>,
    /// Requests that never complete.
    pub lose: Vec<u64>,
    /// Requests whose last byte is not moved.
    pub short: Vec<u64>,
    /// Requests that complete twice.
    pub twice: Vec<u64>,
    /// First request that the NIC does not process. It then processes no further requests.
    pub dead: Option<u64>,
    /// Request at whose completion the completion queue overruns its reader by a lap.
    pub overrun: Option<u64>,
    /// Maximum number of written requests without a doorbell that the NIC accepts, if less than the kernel's limit.
    pub batch: Option<u32>,
}

/// First byte and length of the registered memory of each key.
#[derive(Clone, Debug, Default)]
pub struct Regions(pub BTreeMap<u32, (u64, u64)>);

impl Regions {
    fn covers(&self, key: u32, address: u64, bytes: u64) -> bool {
        self.0
            .get(&key)
            .is_some_and(|(first, length)| address >= *first && bytes <= *length && address - first <= length - bytes)
    }
}

/// Observations of the NIC on a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueObservations {
    /// Number of requests that were covered by a doorbell and processed.
    pub requests: u64,
    /// Reason why the queue is no longer served: an invalid action of a kernel, or an injected fault.
    pub wrong: Option<String>,
}

/// The NIC's side of a queue.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    queue: &'a QueueMemory,
    order: CompletionOrder,
    faults: &'a QueueFaults,
    /// `None` for the null NIC, which reads only the first word of a request.
    regions: Option<&'a Regions>,
    intake: Intake,
    /// Number of completions written.
    written: u64,
    /// Number of requests that succeeded.
    good: u64,
    held: Vec<(u64, CompletionStatus)>,
    random: Random,
    /// Reason why the queue is no longer served.
    wrong: &'a OnceLock<String>,
}

impl<'a> Side<'a> {
    pub fn new(
        (queue, wrong): (&'a QueueMemory, &'a OnceLock<String>),
        order: CompletionOrder,
        faults: &'a QueueFaults,
        regions: Option<&'a Regions>,
    ) -> Side<'a> {
        let options = queue.options();
        let begun = options.counter;
        let max_batch = faults.batch.unwrap_or(options.max_batch);
        let intake = Intake { seen: begun, depth: options.depth, max_batch };
        let random = Random(if let CompletionOrder::Any(seed, _) = order { seed } else { 0 });
        let held = Vec::new();
        Side { queue, order, faults, regions, intake, written: begun, good: begun, held, random, wrong }
    }

    /// Polls the queue and processes new requests. Returns whether there were any.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let mut moved = false;
        if self.wrong.get().is_none() {
            match self.intake.poll(self.queue, self.written) {
                Ok(to) if to == self.intake.seen => {}
                Ok(to) => {
                    self.take(to);
                    moved = true;
                }
                Err(refusal) => self.refuse(refusal),
            }
        }
        moved | self.release()
    }

    /// Processes the requests below `to`.
    fn take(&mut self, to: u64) {
        let quick = self.order == CompletionOrder::Posted && self.regions.is_none() && self.is_faultless();
        for number in self.intake.seen..to {
            if self.faults.dead.is_some_and(|dead| number >= dead) {
                let _ = self.wrong.set(format!("dead from request {number} on, by an injected fault"));
                break;
            }
            let words = load_relaxed_sys_words(self.queue.slot(number), 0).0;
            let checked = self.intake.check(number, words[0]).and_then(|()| {
                // Kernels of ginlab use the number as ID.
                let is_ours = words[0] as u16 == number as u16;
                if is_ours { Ok(()) } else { Err(Refusal::Slot { number, first: words[0] }) }
            });
            let taken = match checked {
                Ok(()) if quick => {
                    self.complete(number, words[0], CompletionStatus::Ok as u8);
                    Ok(())
                }
                Ok(()) => self.serve(number, &words),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = taken {
                return self.refuse(refusal);
            }
        }
        self.intake.seen = to;
        self.count();
    }

    fn is_faultless(&self) -> bool {
        self.faults.fail.is_empty()
            && self.faults.lose.is_empty()
            && self.faults.short.is_empty()
            && self.faults.twice.is_empty()
            && self.faults.overrun.is_none()
    }

    /// Executes a request.
    fn serve(&mut self, number: u64, words: &[u64]) -> Result<(), Refusal> {
        let request = self.intake.decode(number, words)?;
        let told = self.faults.fail.iter().find(|(at, _)| *at == number).map(|(_, code)| *code);
        let status = match told {
            Some(code) => {
                self.complete(number, words[0], code);
                return Ok(());
            }
            None => self.transfer(&request, u32::from(self.faults.short.contains(&number))),
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

    /// Performs a request, except for its last `dropped` bytes.
    fn transfer(&self, request: &DecodedRequest, dropped: u32) -> CompletionStatus {
        let (Some(regions), RequestData::Memory(local, remote)) = (self.regions, request.body) else {
            return CompletionStatus::Ok;
        };
        let Local { address, length, key } = local;
        if length > request::MOST_BYTES {
            return CompletionStatus::LocalLength;
        }
        if !regions.covers(key, address, length.into()) {
            return CompletionStatus::LocalKey;
        }
        let Remote { address: there, key: theirs, .. } = remote;
        // The address of an empty write is not checked, because a signal without data is an empty write.
        if length > 0 && !regions.covers(theirs, there, length.into()) {
            return CompletionStatus::RemoteAddress;
        }
        let (from, to) = if request.operation == EfaOperation::Read { (there, address) } else { (address, there) };
        // SAFETY: both ranges are in registered memory, which stays valid while the NIC runs. The poster of a request
        // does not access its bytes until it completes.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length.saturating_sub(dropped) as usize) };
        CompletionStatus::Ok
    }

    /// Completes requests that are held back: all of them or, in random order, at most one that the seed selects.
    fn release(&mut self) -> bool {
        let CompletionOrder::Any(_, most) = self.order else {
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
        let chosen = self.random.next() as usize;
        // Requests are held back until there are `most` of them; in addition, one is released with probability 1/4 per
        // pass.
        if self.held.len() >= most || chosen.is_multiple_of(4) {
            let (number, status) = self.held.swap_remove(chosen / 4 % self.held.len());
            self.complete(number, 0, status as u8);
            self.count();
        }
        true
    }

    /// Writes a completion. Its first word, which contains the phase, is written last.
    #[inline]
    fn complete(&mut self, number: u64, first: u64, status: u8) {
        let operation = EfaOperation::of((first >> 16 & 0xf) as u8).unwrap_or(EfaOperation::Write);
        let options = self.queue.options();
        if self.faults.overrun == Some(number) {
            self.written += u64::from(options.completions);
        }
        let phase = rules::completion_phase(self.written, options.completions);
        let words = Sent { id: number & 0xffff, status, operation, pair: 7 }.words(phase);
        let entry = self.queue.completion(self.written);
        store_release_host_u64(&entry[1], words[1]);
        // Uses release order: a kernel that acquires this word observes the bytes of a read.
        store_release_host_u64(&entry[0], words[0]);
        self.written += 1;
        self.good += u64::from(status == 0);
    }

    /// Publishes the number of successful requests. Release, as for a completion.
    #[inline]
    fn count(&self) {
        store_release_host_u64(self.queue.counter(), self.good & rules::COUNTER_MASK);
    }

    /// Puts the queue pair in the error state: the next completion reports it, and no further requests are processed.
    fn refuse(&mut self, refusal: Refusal) {
        self.complete(self.intake.seen, 0, CompletionStatus::QueuePair as u8);
        // The first reason is kept.
        let _ = self.wrong.set(refusal.to_string());
    }

    /// Returns the observations.
    pub fn found(self) -> QueueObservations {
        QueueObservations {
            requests: self.intake.seen - self.queue.options().counter,
            wrong: self.wrong.get().cloned(),
        }
    }
}
