//! The ring's protocol in its shortest form, with one fault at a time.
//!
//! A model that cannot fail proves nothing. Each [`RingFault`] is a possible error of the ring. Each scenario must fail
//! with its faults, and pass without them.

use super::Proxy;
use cuda_std::memory::{
    Word, WordPair, compare_exchange_acquire_gpu_u64, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64,
    fetch_max_release_gpu_u64, load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_u64,
    load_acquire_sys_v2_u64, load_relaxed_gpu_u64, load_relaxed_sys_u64, store_relaxed_gpu_u64, store_relaxed_sys_u64,
    store_relaxed_sys_v2_u64, store_release_gpu_u64, store_release_sys_u64,
};
use cuda_std::thread::nanosleep;
use kernels::command::{Command, PARITY};
use kernels::ring::{DeviceWords, HostWords, Ring, Status, parity};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RingFault {
    /// The producer stores the command without a fence after the payload.
    NoFence,
    /// Lanes of a warp store each other's commands, and only shuffles separate the payload from the fence.
    NoWarpBarrier,
    /// The producer does not wait until its slot is free.
    NoSpaceCheck,
    /// The producer reads a tail that is one capacity too high.
    SpaceCountedTwice,
    /// The producer uses the relayed tail without acquiring it.
    TailCacheRelaxed,
    /// The poller relays the tail without release.
    TailRelayRelaxed,
    /// The producer leaves one word with the parity of lap 0.
    WordWithoutParity,
    /// The proxy checks the parity of only three of four words.
    LastWordUnchecked,
    /// The proxy expects the parity of lap 0 in every lap.
    LapForgotten,
    /// The proxy reads the payload without a fence after the command.
    NoAcquire,
    /// The proxy frees a slot before it reads it.
    TailBeforeRead,
    /// The proxy frees slots without release.
    TailRelaxed,
    /// The proxy publishes the watermark without release.
    WatermarkRelaxed,
    /// The proxy publishes the status before the last watermark.
    StatusBeforeWatermark,
    /// The poller relays the watermark without release.
    WatermarkRelayRelaxed,
    /// The poller relays the status without release.
    StatusRelayRelaxed,
    /// A waiting thread returns a status without loading the watermark again.
    NoSecondLook,
    /// The poller returns without releasing the role.
    RoleKept,
}

// Accessors of a ring's words. Each scenario keeps its memory until its threads have ended.

fn host<'a>(ring: &Ring) -> &'a HostWords {
    // SAFETY: the scenario keeps the memory until its threads have ended.
    unsafe { &*ring.host }
}

fn device<'a>(ring: &Ring) -> &'a DeviceWords {
    // SAFETY: the scenario keeps the memory until its threads have ended.
    unsafe { &*ring.device }
}

fn slot<'a>(ring: &Ring, ticket: u64) -> &'a [WordPair; 2] {
    // SAFETY: the scenario keeps the memory until its threads have ended; the index is below the capacity.
    unsafe { &*ring.slots.cast::<[WordPair; 2]>().add((ticket % ring.capacity()) as usize) }
}

/// Like [`Ring::push_words`] with `Fence::None`, with a fault.
pub fn push(ring: &mut Ring, command: &Command, fault: Option<RingFault>) -> u64 {
    let words = device(ring);
    let ticket = fetch_add_relaxed_gpu_u64(&words.head.0, 1);
    while ticket >= ring.free_below && fault != Some(RingFault::NoSpaceCheck) {
        let tail = match fault {
            Some(RingFault::TailCacheRelaxed) => load_relaxed_gpu_u64(&words.tail_cache.0),
            _ => load_acquire_gpu_u64(&words.tail_cache.0),
        };
        let slots = if fault == Some(RingFault::SpaceCountedTwice) { 2 * ring.capacity() } else { ring.capacity() };
        ring.free_below = tail + slots;
        if ticket < ring.free_below {
            break;
        }
        if compare_exchange_acquire_gpu_u64(&words.tail_poller.0, 0, 1) == 0 {
            let tail = load_acquire_sys_u64(&host(ring).tail.0);
            match fault {
                Some(RingFault::TailRelayRelaxed) => store_relaxed_gpu_u64(&words.tail_cache.0, tail),
                _ => store_release_gpu_u64(&words.tail_cache.0, tail),
            }
            if fault != Some(RingFault::RoleKept) {
                store_release_gpu_u64(&words.tail_poller.0, 0);
            }
        }
        nanosleep(0);
    }
    let lap = parity(ticket, ring.log2_capacity);
    let last_lap = if fault == Some(RingFault::WordWithoutParity) { PARITY } else { lap };
    let [a, b, c, d] = command.encode();
    store_relaxed_sys_v2_u64(&slot(ring, ticket)[0], a | lap, b | lap);
    store_relaxed_sys_v2_u64(&slot(ring, ticket)[1], c | lap, d | last_lap);
    ticket
}

/// Pushes on one of two lanes that store each other's commands, like a full warp. The lane's payload is already
/// written; `mine` and `theirs` synchronize the two lanes. A barrier orders the preceding accesses, whereas a shuffle
/// only shows that the other lane has arrived.
pub fn push_for_other(ring: &Ring, other: u64, mine: &Word, theirs: &Word, fault: Option<RingFault>) {
    if fault == Some(RingFault::NoWarpBarrier) {
        store_relaxed_gpu_u64(mine, 1);
        while load_relaxed_gpu_u64(theirs) == 0 {
            nanosleep(0);
        }
    } else {
        store_release_gpu_u64(mine, 1);
        while load_acquire_gpu_u64(theirs) == 0 {
            nanosleep(0);
        }
    }
    fence_acq_rel_sys();
    let lap = parity(other, ring.log2_capacity);
    let [a, b, c, d] = super::command(other + 1).encode();
    store_relaxed_sys_v2_u64(&slot(ring, other)[0], a | lap, b | lap);
    store_relaxed_sys_v2_u64(&slot(ring, other)[1], c | lap, d | lap);
}

/// Like [`Ring::wait`], with a fault.
pub fn wait(ring: &mut Ring, role: usize, ticket: u64, fault: Option<RingFault>) -> Result<(), Status> {
    let device = device(ring);
    let mut elected = false;
    let result = loop {
        elected = elected || compare_exchange_acquire_gpu_u64(&device.completion_poller[role].0, 0, 1) == 0;
        let (watermark, status) = if elected {
            let (watermark, status) = load_acquire_sys_v2_u64(&host(ring).completion.0);
            match fault {
                Some(RingFault::WatermarkRelayRelaxed) => {
                    store_relaxed_gpu_u64(&device.completion_cache.0.0, watermark)
                }
                _ => fetch_max_release_gpu_u64(&device.completion_cache.0.0, watermark),
            }
            match fault {
                Some(RingFault::StatusRelayRelaxed) => store_relaxed_gpu_u64(&device.completion_cache.0.1, status),
                _ => store_release_gpu_u64(&device.completion_cache.0.1, status),
            }
            (watermark, status)
        } else {
            load_acquire_gpu_v2_u64(&device.completion_cache.0)
        };
        if watermark > ticket {
            ring.free_below = ring.free_below.max(watermark + ring.capacity());
            break Ok(());
        }
        if status != 0 {
            let (again, _) = load_acquire_sys_v2_u64(&host(ring).completion.0);
            break if again > ticket && fault != Some(RingFault::NoSecondLook) { Ok(()) } else { Err(Status(status)) };
        }
        nanosleep(0);
    };
    if elected && fault != Some(RingFault::RoleKept) {
        store_release_gpu_u64(&device.completion_poller[role].0, 0);
    }
    result
}

/// The proxy, with a fault.
pub struct ByHand {
    ring: Ring,
    cursor: u64,
    fault: Option<RingFault>,
}

impl ByHand {
    pub fn new(ring: Ring, fault: Option<RingFault>) -> ByHand {
        ByHand { ring, cursor: 0, fault }
    }

    fn words(&self) -> [u64; 4] {
        let slot = slot(&self.ring, self.cursor);
        [&slot[0].0, &slot[0].1, &slot[1].0, &slot[1].1].map(load_relaxed_sys_u64)
    }
}

impl Proxy for ByHand {
    fn pop(&mut self) -> Option<[u64; 4]> {
        let mut words = self.words();
        let lap = match self.fault {
            Some(RingFault::LapForgotten) => PARITY,
            _ => parity(self.cursor, self.ring.log2_capacity),
        };
        let checked = if self.fault == Some(RingFault::LastWordUnchecked) { 3 } else { 4 };
        if words[..checked].iter().any(|word| word & PARITY != lap) {
            return None;
        }
        self.cursor += 1;
        if self.fault == Some(RingFault::TailBeforeRead) {
            self.publish_tail();
            self.cursor -= 1;
            words = self.words();
            self.cursor += 1;
        }
        Some(words.map(|word| word & !PARITY))
    }

    fn acquire(&self) {
        if self.fault != Some(RingFault::NoAcquire) {
            fence_acq_rel_sys();
        }
    }

    fn publish_tail(&mut self) {
        let tail = &host(&self.ring).tail.0;
        match self.fault {
            Some(RingFault::TailRelaxed) => store_relaxed_sys_u64(tail, self.cursor),
            _ => store_release_sys_u64(tail, self.cursor),
        }
    }

    fn publish_watermark(&self, watermark: u64) {
        let word = &host(&self.ring).completion.0.0;
        match self.fault {
            Some(RingFault::WatermarkRelaxed) => store_relaxed_sys_u64(word, watermark),
            _ => store_release_sys_u64(word, watermark),
        }
    }

    fn publish_end(&self, watermark: u64, stop: Status) {
        let status = &host(&self.ring).completion.0.1;
        if self.fault == Some(RingFault::StatusBeforeWatermark) {
            store_release_sys_u64(status, stop.0);
            self.publish_watermark(watermark);
        } else {
            self.publish_watermark(watermark);
            store_release_sys_u64(status, stop.0);
        }
    }
}
