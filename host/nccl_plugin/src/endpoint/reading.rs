//! Reading of requests that kernels have written into queues (GIN type 5).

use super::Endpoint;
use crate::coll::PluginRegion;
use crate::operation::{RemoteLocation, RemoteSignal, Request, Source, SubmittedOperation, What};
use crate::process::now_ns;
use crate::queues::{BATCH, QueueBlock, QueueView, signal_at};
use efa_queue::intake::{Intake, SendQueue};
use efa_queue::request::WORDS_128;
use efa_queue::{EfaOperation, request, rules};
use ginlab_fabric::Rail;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Position up to which each queue has been read.
#[derive(Default)]
pub(super) struct Readers {
    /// Version of the communicator's list of blocks.
    version: u32,
    blocks: Vec<Arc<QueueBlock>>,
    /// The queues of all blocks.
    queues: Vec<Reader>,
    /// Whether counters may have changed since the kernels' copies were last updated.
    counted: bool,
    /// Whether bytes of a get have arrived. A kernel that sees the counter's new value must also see these bytes.
    got: bool,
}

/// Position in one queue.
#[derive(Clone, Copy)]
struct Reader {
    queue: QueueView,
    intake: Intake,
    /// Value of the counter in the kernels' copy.
    told: u64,
}

impl Reader {
    fn slot(&self, number: u64) -> &[AtomicU64; WORDS_128] {
        let QueueView { slots, depth, .. } = self.queue;
        // SAFETY: the index is below the depth of the ring, which is in the communicator's arena, and all parties
        // access it as words.
        unsafe { &*(slots as *const [AtomicU64; WORDS_128]).add(rules::slot(number, depth) as usize) }
    }
}

impl SendQueue for Reader {
    fn doorbell(&self) -> u32 {
        // SAFETY: the doorbell is a word of the communicator's arena. Uses acquire order, which pairs with the kernels'
        // fence.acq_rel.sys before the store of the doorbell, so that the preceding requests are visible.
        unsafe { (*(self.queue.doorbell as *const AtomicU32)).load(Ordering::Acquire) }
    }

    fn first_word(&self, number: u64) -> u64 {
        // Uses acquire order, which pairs with the kernels' fence.acq_rel.sys after the store of the doorbell for
        // earlier requests.
        self.slot(number)[0].load(Ordering::Acquire)
    }
}

impl Readers {
    /// Replaces the list of blocks. Queues that were in the old list keep their position.
    fn renew(&mut self, blocks: Vec<Arc<QueueBlock>>) {
        let before = std::mem::take(&mut self.queues);
        let reader = |queue: &QueueView| {
            let known = before.iter().find(|known| known.queue.doorbell == queue.doorbell);
            let intake = Intake { seen: 0, depth: queue.depth, max_batch: BATCH };
            known.copied().unwrap_or(Reader { queue: *queue, intake, told: 0 })
        };
        self.queues = blocks.iter().flat_map(|block| block.queues.iter()).map(reader).collect();
        self.blocks = blocks;
    }

    /// Records that a request is complete; `got` indicates a get.
    pub fn note(&mut self, got: bool) {
        self.counted = true;
        self.got |= got;
    }
}

impl<R: Rail> Endpoint<R> {
    /// Appends the requests for which kernels have rung a doorbell to `into`, as operations.
    pub(super) fn read_queues(&mut self, into: &mut Vec<SubmittedOperation>) -> Result<(), String> {
        if let Some(blocks) = self.coll.queues_since(&mut self.readers.version) {
            self.readers.renew(blocks);
        }
        let mut now = 0;
        for index in 0..self.readers.queues.len() {
            let reader = self.readers.queues[index];
            let Reader { queue, intake, .. } = reader;
            let ended = intake.seen - rules::behind(intake.seen, queue.counter.value());
            let rung = intake
                .poll(&reader, ended)
                .map_err(|why| format!("queue {index} (context {}): {why}", queue.context))?;
            if rung == intake.seen {
                continue;
            }
            if now == 0 {
                now = now_ns();
            }
            for number in intake.seen..rung {
                let operation = self
                    .read(&reader, number, now)
                    .map_err(|why| format!("request {number} of queue {index} (context {}): {why}", queue.context))?;
                into.push(operation);
            }
            self.readers.queues[index].intake.seen = rung;
        }
        Ok(())
    }

    /// Writes the counters that have changed to GPU memory.
    pub(super) fn publish_counters(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.readers.counted) {
            return Ok(());
        }
        let got = std::mem::take(&mut self.readers.got);
        for reader in &mut self.readers.queues {
            let value = reader.queue.counter.value();
            let Some(mirror) = reader.queue.mirror.filter(|_| reader.told != value) else { continue };
            reader.told = value;
            let scratch = mirror.scratch as *mut u64;
            // SAFETY: both are words of the communicator's arena, at multiples of 8. A copy that reads a later value
            // from the scratch word is also correct, since both values are counts. After a get, `put_word` orders the
            // value after the get's bytes.
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

    fn read(&self, reader: &Reader, number: u64, now: u64) -> Result<SubmittedOperation, String> {
        let Reader { queue, intake, .. } = reader;
        let slot = reader.slot(number);
        // Uses relaxed order: ordered by the acquire of the doorbell in `read_queues`.
        let words: [u64; WORDS_128] = std::array::from_fn(|index| slot[index].load(Ordering::Relaxed));
        let written = intake.decode(number, &words).map_err(|why| why.to_string())?;
        let peer = usize::from(written.head.to.handle);
        if peer >= self.coll.ranks {
            return Err(format!("its target is rank {peer} of {}", self.coll.ranks));
        }
        let (mut carried, mut from) = (None, Source { address: 0, cuda: false });
        let (local, remote) = match written.body {
            request::RequestData::Memory(local, remote) => (local, remote),
            request::RequestData::CarriedTo(bytes, _, remote) => {
                let bytes = Box::new(bytes);
                from.address = bytes.as_ptr() as u64;
                carried = Some(bytes);
                (efa_queue::Local { length: remote.length, ..efa_queue::Local::default() }, remote)
            }
            _ => return Err("a send, for which no receive exists".into()),
        };
        let bytes = u64::from(remote.length);
        let there = RemoteLocation { region: remote.key, offset: remote.address };
        let here = RemoteLocation { region: local.key, offset: local.address };
        let mut parts = 1;
        if bytes > 0 {
            // All ranks register regions of the same size in the same order, so a range that is invalid on this rank is
            // also invalid on the peer.
            self.check(there, bytes, "there")?;
            if carried.is_none() {
                let region = self.check(here, bytes, "here")?;
                from = Source { address: region.address + here.offset, cuda: region.cuda };
            }
            parts = bytes.div_ceil(self.layout.room as u64) as u32;
        }
        let what = match written.operation {
            EfaOperation::Read => {
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
                    Some(RemoteSignal { at, add: 1 })
                };
                What::Put { from, bytes, to: there, signal }
            }
        };
        let request = Request::counted(parts, queue.counter);
        Ok(SubmittedOperation { what, peer, context: queue.context, at_ns: now, request, carried })
    }

    fn check(&self, place: RemoteLocation, bytes: u64, side: &str) -> Result<PluginRegion, String> {
        let region = self
            .coll
            .region(place.region)
            .ok_or_else(|| format!("key {} {side}: no region is registered with this key", place.region))?;
        if place.offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
            return Err(format!(
                "{bytes} B at {} of region {} {side}, which has {} B",
                place.offset, place.region, region.bytes
            ));
        }
        Ok(region)
    }
}
