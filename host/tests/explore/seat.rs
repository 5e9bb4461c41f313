//! Environment of a PE's kernel: the world of the real device code, objects, and a judge that records failures.

use kernels::collective::BlockCounters;
use kernels::gin::{Block, Context, Inbox, Signal, Sym, WorldView};
use kernels::pattern;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Size of an object in bytes.
pub const OBJECT: u64 = 16;
/// Number of objects in a heap.
pub const OBJECTS: u64 = 64;
/// Number of objects that form an inbox. The first objects are two inboxes, each for up to four PEs and messages of up
/// to one object.
const OF_INBOX: u64 = 16;
/// Number of signals of the two inboxes. They precede the programs' signals.
const OF_INBOXES: u32 = 8;
/// Number of the first object after the inboxes.
const FIRST: u64 = 2 * OF_INBOX;
/// Maximum number of signals that programs use, including those of the inboxes.
pub const SIGNALS_USED: usize = 32;

/// Offset of the first object in a heap.
pub const START: u64 = kernels::gin::SIGNALS as u64 * 8;

/// Describes the object or inbox at an offset of a heap.
pub fn object(offset: u64) -> String {
    let (number, byte) = ((offset - START) / OBJECT, (offset - START) % OBJECT);
    let part = if byte == 0 { String::new() } else { format!(" from byte {byte} on") };
    match number.checked_sub(FIRST) {
        Some(number) => format!("object {number}{part}"),
        None => format!("inbox {} at byte {}", number / OF_INBOX, number % OF_INBOX * OBJECT + byte),
    }
}

/// Results of the kernels of an execution.
#[derive(Debug, Default)]
pub struct Judge {
    pub failure: RefCell<Option<String>>,
    /// Number of barriers that each PE has entered.
    entered: [Cell<u32>; 4],
    /// Current operation and round of each PE.
    doing: [Cell<(&'static str, u32)>; 4],
}

impl Judge {
    pub fn fail(&self, text: String) {
        self.failure.borrow_mut().get_or_insert(text);
    }

    pub fn doing(&self, pe: usize) -> (&'static str, u32) {
        self.doing[pe].get()
    }
}

/// Environment of a PE's kernel.
#[derive(Clone)]
pub struct TestPe {
    pub world: WorldView,
    pub me: u32,
    pub pes: u32,
    /// Number of PEs of a node.
    pub local: u32,
    pub judge: Rc<Judge>,
    /// State of the collectives for their single block.
    pub state: *mut BlockCounters,
    /// Timestamps, which are not read.
    pub times: *mut u64,
}

impl TestPe {
    /// Returns a context of the block, whose barriers end the kernel's steps.
    pub fn line(&self) -> Context<Block> {
        self.world.context(Block)
    }

    /// Returns the other PEs, starting with the next one.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, pes) = (self.me, self.pes);
        (1..pes).map(move |step| (me + step) % pes)
    }

    /// Returns `count` objects starting at number `number`.
    pub fn objects(&self, number: u64, count: u64) -> Sym<u8> {
        assert!(FIRST + number + count <= OBJECTS, "no such object");
        // SAFETY: the range is between the inboxes and the end of the objects, and aligned to 16 bytes.
        unsafe { Sym::from_parts(START + (FIRST + number) * OBJECT, count * OBJECT) }
    }

    pub fn object(&self, number: u64) -> Sym<u8> {
        self.objects(number, 1)
    }

    /// Returns one of the two inboxes.
    pub fn inbox(&self, number: u32) -> Inbox {
        let offset = START + u64::from(number) * OF_INBOX * OBJECT;
        Inbox { offset, capacity: OBJECT, signals: Signal(number * 4) }
    }

    /// Returns a signal of the program.
    pub fn signal(&self, number: u32) -> Signal {
        Signal(OF_INBOXES + number)
    }

    /// Fills a local object with a pattern.
    pub fn fill(&self, object: Sym<u8>, seed: u64) {
        let start = self.world.local(object);
        for at in 0..object.len() {
            // SAFETY: the address is inside the object, and only the program under test determines who uses it.
            unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
        }
    }

    /// Copies bytes to a local object.
    pub fn write(&self, object: Sym<u8>, bytes: &[u8]) {
        let start = self.world.local(object);
        for (at, byte) in (0..object.len()).zip(bytes) {
            // SAFETY: as for `fill`, the address is inside the object.
            unsafe { start.add(at as usize).write(*byte) };
        }
    }

    /// Returns whether a call of a kernel has failed.
    pub fn has_failed(&self) -> bool {
        self.world.has_failed()
    }

    /// Returns the bytes of a local object.
    pub fn bytes(&self, object: Sym<u8>) -> Vec<u8> {
        // SAFETY: the range is inside the heap, and no other code runs concurrently.
        unsafe { std::slice::from_raw_parts(self.world.local(object), object.len() as usize) }.to_vec()
    }

    /// Checks that a local object has this pattern.
    pub fn expect(&self, object: Sym<u8>, seed: u64, what: &str) {
        let expected: Vec<u8> = (0..object.len()).map(|at| pattern::byte(seed, at)).collect();
        self.expect_bytes(object, &expected, what);
    }

    /// Checks that a local object has these bytes.
    pub fn expect_bytes(&self, object: Sym<u8>, expected: &[u8], what: &str) {
        let found = self.bytes(object);
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            let (call, round) = self.judge.doing(self.me as usize);
            self.judge.fail(format!(
                "PE {}, {call} {round}: byte {at} of {what} is {:#04x} and not {:#04x}",
                self.me, found[at], expected[at]
            ));
        }
    }

    /// Records the current operation, for messages.
    pub fn doing(&self, call: &'static str, round: u32) {
        self.judge.doing[self.me as usize].set((call, round));
    }

    /// Records that this PE enters a barrier.
    pub fn enter(&self) {
        let entered = &self.judge.entered[self.me as usize];
        entered.set(entered.get() + 1);
    }

    /// Checks that no PE has entered fewer barriers than this one has passed.
    pub fn has_passed(&self) {
        let mine = self.judge.entered[self.me as usize].get();
        if let Some(late) = self.others().find(|pe| self.judge.entered[*pe as usize].get() < mine) {
            self.judge.fail(format!("PE {} has passed barrier {mine}, which PE {late} has not entered", self.me));
        }
    }

    /// Ends the kernel's step, so that the others can run.
    pub fn stop(&self) {
        cuda_std::thread::sync_threads();
    }
}
