//! Requests that kernels have written into queues (GIN of type 5), as operations.

use super::Endpoint;
use crate::coll::Region;
use crate::operation::{Operation, Place, Request, Signal, Source, What};
use crate::process::now_ns;
use crate::queues::{Block, Queue, signal_at};
use efa_queue::request::WORDS_128;
use efa_queue::{Operation as Verb, Request as Written, request, rules};
use ginlab_fabric::Rail;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How far each queue has been read.
#[derive(Default)]
pub(super) struct Readers {
    /// Of the communicator's list.
    version: u32,
    blocks: Vec<Arc<Block>>,
    /// Queues of all blocks.
    queues: Vec<Reader>,
    /// Something may have been counted that kernels have not been told.
    counted: bool,
    /// Bytes of a get have come, which kernels shall see that see it counted.
    got: bool,
}

/// One queue.
#[derive(Clone, Copy)]
struct Reader {
    queue: Queue,
    /// Requests that have been read.
    seen: u64,
    /// What kernels have been told of its counter.
    told: u64,
}

impl Readers {
    /// Queues that were there before go on where they are.
    fn renew(&mut self, blocks: Vec<Arc<Block>>) {
        let before = std::mem::take(&mut self.queues);
        let reader = |queue: &Queue| {
            let known = before.iter().find(|known| known.queue.doorbell == queue.doorbell);
            known.copied().unwrap_or(Reader { queue: *queue, seen: 0, told: 0 })
        };
        self.queues = blocks.iter().flat_map(|block| block.queues.iter()).map(reader).collect();
        self.blocks = blocks;
    }

    /// A request is complete, `got`: a get.
    pub fn note(&mut self, got: bool) {
        self.counted = true;
        self.got |= got;
    }
}

impl<R: Rail> Endpoint<R> {
    /// Takes what kernels have rung for.
    pub(super) fn read_queues(&mut self, into: &mut Vec<Operation>) -> Result<(), String> {
        if let Some(blocks) = self.coll.queues_since(&mut self.readers.version) {
            self.readers.renew(blocks);
        }
        let mut now = 0;
        for index in 0..self.readers.queues.len() {
            let Reader { queue, seen, .. } = self.readers.queues[index];
            // SAFETY: a word of the communicator's arena. Acquire: the requests behind it were written before (the kernels' fence.acq_rel.sys).
            let doorbell = unsafe { (*(queue.doorbell as *const AtomicU32)).load(Ordering::Acquire) };
            if doorbell as u16 == seen as u16 {
                continue;
            }
            if now == 0 {
                now = now_ns();
            }
            let ended = seen - rules::behind(seen, queue.counter.value());
            let rung = rules::rung(seen, ended, doorbell, queue.depth, queue.depth).map_err(|why| {
                format!("queue {index}: a doorbell that says {doorbell} behind {seen} requests: {why:?}")
            })?;
            for number in seen..rung {
                let operation = self
                    .read(&queue, number, now)
                    .map_err(|why| format!("request {number} of queue {index} (context {}): {why}", queue.context))?;
                into.push(operation);
            }
            self.readers.queues[index].seen = rung;
        }
        Ok(())
    }

    /// Lets the counters in the GPU's memory follow.
    pub(super) fn tell_counters(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.readers.counted) {
            return Ok(());
        }
        let got = std::mem::take(&mut self.readers.got);
        for reader in &mut self.readers.queues {
            let value = reader.queue.counter.value();
            let Some(mirror) = reader.queue.mirror.filter(|_| reader.told != value) else { continue };
            reader.told = value;
            let scratch = mirror.scratch as *mut u64;
            // SAFETY: words of the communicator's arena, at multiples of 8. A copy that finds a later number in the scratch word is right as well:
            // both are counts. Behind a get its bytes come first.
            unsafe {
                if got {
                    self.copies.put_word(mirror.device, scratch, value)
                } else {
                    self.copies.put_count(mirror.device, scratch, value)
                }
            }
            .map_err(|why| format!("writing a counter: {why}"))?;
        }
        Ok(())
    }

    fn read(&self, queue: &Queue, number: u64, now: u64) -> Result<Operation, String> {
        let at = queue.slots as *const [AtomicU64; WORDS_128];
        // SAFETY: a slot of the ring; the kernels write it again only when its request has been counted.
        let slot = unsafe { &*at.add(rules::slot(number, queue.depth) as usize) };
        // Relaxed: behind the doorbell's acquire.
        let words: [u64; WORDS_128] = std::array::from_fn(|index| slot[index].load(Ordering::Relaxed));
        if request::phase(words[0]) != rules::send_phase(number, queue.depth) {
            return Err("its phase is that of another lap".into());
        }
        let written = Written::decode(&words).map_err(|why| format!("no request: {why:?}"))?;
        let peer = usize::from(written.head.to.handle);
        if peer >= self.coll.ranks {
            return Err(format!("it goes to rank {peer} of {}", self.coll.ranks));
        }
        let (mut carried, mut from) = (None, Source { address: 0, cuda: false });
        let (local, remote) = match written.body {
            request::Body::Memory(local, remote) => (local, remote),
            request::Body::CarriedTo(bytes, _, remote) => {
                let bytes = Box::new(bytes);
                from.address = bytes.as_ptr() as u64;
                carried = Some(bytes);
                (efa_queue::Local { length: remote.length, ..efa_queue::Local::default() }, remote)
            }
            _ => return Err("a send: there is nobody who receives".into()),
        };
        let bytes = u64::from(remote.length);
        let there = Place { region: remote.key, offset: remote.address };
        let here = Place { region: local.key, offset: local.address };
        let mut parts = 1;
        if bytes > 0 {
            // All ranks register in the same order, and as much: what is no place here is none there.
            self.check(there, bytes, "there")?;
            if carried.is_none() {
                let region = self.check(here, bytes, "here")?;
                from = Source { address: region.address + here.offset, cuda: region.cuda };
            }
            parts = bytes.div_ceil(self.layout.room as u64) as u32;
        }
        let what = match written.operation {
            Verb::Read => {
                parts = 1;
                What::Get { from: there, bytes, to: here }
            }
            _ => {
                let pair = written.head.to.pair;
                let signal = if pair == 0 {
                    None
                } else {
                    let at = signal_at(&self.coll, &self.readers.blocks, pair, written.head.to.key)
                        .ok_or_else(|| format!("no signal has queue pair {pair}, key {:#x}", written.head.to.key))?;
                    Some(Signal { at, add: 1, strong: false })
                };
                What::Put { from, bytes, to: there, signal }
            }
        };
        let request = Request::counted(parts, queue.counter);
        Ok(Operation { what, peer, context: queue.context, at_ns: now, request, carried })
    }

    fn check(&self, place: Place, bytes: u64, side: &str) -> Result<Region, String> {
        let region = self
            .coll
            .region(place.region)
            .ok_or_else(|| format!("key {} {side}: no region is registered under it", place.region))?;
        if place.offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
            return Err(format!(
                "{bytes} B at {} of region {} {side}, which has {} B",
                place.offset, place.region, region.bytes
            ));
        }
        Ok(region)
    }
}
