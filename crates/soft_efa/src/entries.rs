//! A completion queue in memory that a GPU can map, in the hardware's format: 32-byte entries, whose phase changes with
//! each lap.
//!
//! The NIC does not observe the reader: a full queue is overwritten, and a reader that lags by a lap finds entries of
//! the wrong phase.

use crate::plain::Plain;
use crate::request::RequestKind;
use card_model::{MachineSpec, NicFault};
use efa_queue::completion::{self, Arrived, DecodedCompletion, Sent, WORDS_32};
use efa_queue::{EfaOperation, rules};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Size of an entry in bytes.
pub const BYTES: usize = 32;
/// Bit of the doorbell that requests a notification. The low 16 bits are the number of completions read, bits 29 and
/// 30 count the notifications received, so that each request differs from the previous one.
const ARM: u32 = 1 << 31;
/// Handle number of an address without a handle.
pub const UNKNOWN: u16 = 0xffff;

/// A completion.
#[derive(Clone, Copy, Default)]
pub struct CompletionEntry {
    /// C's ID of the request or receive.
    pub wr_id: u64,
    /// EFA status code.
    pub status: u32,
    /// Whether this is an arrival. Otherwise it is the completion of a request.
    pub is_arrival: bool,
    /// Operation of the request.
    pub kind: RequestKind,
    /// Number of bytes that arrived.
    pub bytes: u32,
    /// Immediate data in C's form, if any.
    pub immediate: Option<u32>,
    /// Number of the queue pair.
    pub number: u32,
    /// Number of the sender's queue pair.
    pub source: u32,
    /// Address of the sender's device.
    pub gid: [u8; 16],
    /// Number of this device's handle of that address.
    pub handle: u16,
    /// Whether the arrival took no receive.
    pub unsolicited: bool,
}

/// The entries of one completion queue.
#[derive(Debug)]
pub struct CompletionEntries {
    memory: Plain,
    doorbell: Plain,
    /// Number of entries.
    pub count: u32,
    /// Number of completions written. The writer must hold the queue's lock.
    written: AtomicU64,
    /// Doorbell of the last notification.
    notified: AtomicU32,
    /// Number of the completion, counted from 1, at which the NIC skips one lap (injected fault).
    overrun: Option<u64>,
}

impl CompletionEntries {
    /// Creates a queue of `count` entries, a power of two.
    pub fn new(count: u32, spec: &MachineSpec) -> io::Result<CompletionEntries> {
        let overrun = spec.faults.iter().find_map(|fault| match fault {
            NicFault::Overrun(at) => Some(*at),
            _ => None,
        });
        Ok(CompletionEntries {
            memory: Plain::with_view(count as usize * BYTES)?,
            doorbell: Plain::new(4)?,
            count,
            written: AtomicU64::new(0),
            notified: AtomicU32::new(0),
            overrun,
        })
    }

    /// Returns the address of the first entry for C. The memory is read-only, like a driver's mapping. A stray store
    /// therefore faults, and a GPU must register the memory as read-only.
    pub fn buffer(&self) -> *mut u8 {
        self.memory.view()
    }

    /// Returns whether completions follow the first `read`, which the reader has taken.
    pub fn has_unread(&self, read: u64) -> bool {
        self.written.load(Ordering::Relaxed) != read
    }

    /// Returns the value of the doorbell if it requests a notification that has not been sent, and completions follow
    /// those that it reports as read.
    pub fn requests_event(&self) -> Option<u32> {
        // SAFETY: the address is within the memory and aligned. All parties access it as a word.
        let doorbell = unsafe { &*self.doorbell.base().cast::<AtomicU32>() }.load(Ordering::Relaxed);
        let is_new = doorbell & ARM != 0 && self.notified.load(Ordering::Relaxed) != doorbell;
        (is_new && self.written.load(Ordering::Relaxed) as u16 != doorbell as u16).then_some(doorbell)
    }

    /// Records that the notification requested by this value of the doorbell is sent.
    pub fn set_notified(&self, doorbell: u32) {
        self.notified.store(doorbell, Ordering::Relaxed);
    }

    /// Returns the address of the doorbell by which a program that waits for notifications requests one: the number of
    /// completions read, a sequence number, and [`ARM`].
    pub fn doorbell(&self) -> *mut u32 {
        self.doorbell.base().cast()
    }

    fn words(&self, number: u64) -> &[AtomicU64; WORDS_32] {
        let index = rules::slot(number, self.count) as usize;
        // SAFETY: the address is within the memory and aligned. All parties access it as words.
        unsafe { &*self.memory.base().add(index * BYTES).cast() }
    }

    /// Writes a completion. The caller must hold the queue's lock.
    pub fn put(&self, entry: &CompletionEntry) {
        let mut number = self.written.load(Ordering::Relaxed);
        if self.overrun == Some(number + 1) {
            number += u64::from(self.count);
        }
        let phase = rules::completion_phase(number, self.count);
        let operation = match entry.kind {
            RequestKind::Send => EfaOperation::Send,
            RequestKind::Read => EfaOperation::Read,
            RequestKind::Write => EfaOperation::Write,
        };
        let (status, pair) = (entry.status as u8, entry.number as u16);
        let words = if entry.is_arrival {
            let arrived = Arrived {
                id: entry.wr_id as u16,
                status,
                operation,
                pair,
                length: entry.bytes,
                handle: entry.handle,
                source: entry.source as u16,
                immediate: entry.immediate.map(u32::from_be),
                unsolicited: entry.unsolicited,
            };
            let mut words = arrived.words(phase);
            if entry.kind == RequestKind::Send && entry.handle == UNKNOWN {
                let half = |part: usize| u64::from_ne_bytes(std::array::from_fn(|byte| entry.gid[8 * part + byte]));
                (words[2], words[3]) = (half(0), half(1));
            }
            words
        } else {
            let [first, second] = Sent { id: entry.wr_id, status, operation, pair }.words(phase);
            [first, second, 0, 0]
        };
        let places = self.words(number);
        for (place, word) in places.iter().zip(words).skip(1) {
            place.store(word, Ordering::Relaxed);
        }
        // Uses release order, so that a reader (kernel or CPU) that acquires the phase sees the other words and the
        // bytes moved before.
        places[0].store(words[0], Ordering::Release);
        self.written.store(number + 1, Ordering::Relaxed);
    }

    /// Returns the next completion, for callers that poll through the C functions. `read` is the number of completions
    /// read so far.
    pub fn get(&self, read: &mut u64) -> Option<CompletionEntry> {
        let places = self.words(*read);
        let first = places[0].load(Ordering::Relaxed);
        if completion::phase(first) != rules::completion_phase(*read, self.count) {
            return None;
        }
        // Uses acquire order, which pairs with the release in `put`.
        fence(Ordering::Acquire);
        let words: [u64; WORDS_32] = std::array::from_fn(|word| places[word].load(Ordering::Relaxed));
        *read += 1;
        Some(match DecodedCompletion::decode(&words)? {
            DecodedCompletion::Sent(sent) => CompletionEntry {
                wr_id: sent.id,
                status: sent.status.into(),
                kind: sent.operation.into(),
                number: sent.pair.into(),
                source: u32::MAX,
                handle: UNKNOWN,
                ..CompletionEntry::default()
            },
            DecodedCompletion::Arrived(arrived) => {
                let mut gid = [0; 16];
                gid[..8].copy_from_slice(&words[2].to_ne_bytes());
                gid[8..].copy_from_slice(&words[3].to_ne_bytes());
                CompletionEntry {
                    wr_id: arrived.id.into(),
                    status: arrived.status.into(),
                    is_arrival: true,
                    kind: arrived.operation.into(),
                    bytes: arrived.length,
                    immediate: arrived.immediate.map(u32::to_be),
                    number: arrived.pair.into(),
                    source: arrived.source.into(),
                    gid,
                    handle: arrived.handle,
                    unsolicited: arrived.unsolicited,
                }
            }
        })
    }
}
