//! What a PE's kernel has to work with: the world that the product's device code takes, objects, and a judge of what it finds.

use kernels::collective::State;
use kernels::gin::{Block, Context, Inbox, Signal, Sym, World};
use kernels::pattern;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes of an object.
pub const OBJECT: u64 = 16;
/// Objects of a heap.
pub const OBJECTS: u64 = 64;
/// The first objects are the inboxes: two, each for up to four PEs and messages of up to an object.
const OF_INBOX: u64 = 16;
/// Signals of the two inboxes, and the first that programs have.
const OF_INBOXES: u32 = 8;
/// The first object behind the inboxes.
const FIRST: u64 = 2 * OF_INBOX;
/// Signals that programs use at most, inboxes included.
pub const SIGNALS_USED: usize = 32;

/// Where objects begin in a heap.
pub const START: u64 = kernels::gin::SIGNALS as u64 * 8;

/// What lies at this offset of a heap, in words.
pub fn object(offset: u64) -> String {
    let (number, byte) = ((offset - START) / OBJECT, (offset - START) % OBJECT);
    let part = if byte == 0 { String::new() } else { format!(" from byte {byte} on") };
    match number.checked_sub(FIRST) {
        Some(number) => format!("object {number}{part}"),
        None => format!("inbox {} at byte {}", number / OF_INBOX, number % OF_INBOX * OBJECT + byte),
    }
}

/// What the kernels of an execution have found.
#[derive(Debug, Default)]
pub struct Judge {
    pub failure: RefCell<Option<String>>,
    /// How often each PE has entered a barrier.
    entered: [Cell<u32>; 4],
    /// What each PE is doing, and for which round.
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

/// See the module.
#[derive(Clone)]
pub struct Seat {
    pub world: World,
    pub me: u32,
    pub pes: u32,
    /// PEs of a node.
    pub local: u32,
    pub judge: Rc<Judge>,
    /// Of the collectives' one block.
    pub state: *mut State,
    /// Stamps that nobody reads.
    pub times: *mut u64,
}

impl Seat {
    /// A line to the others. By the block, whose barriers end the kernel's turns.
    pub fn line(&self) -> Context<Block> {
        self.world.context(Block)
    }

    /// The PEs behind this one.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, pes) = (self.me, self.pes);
        (1..pes).map(move |step| (me + step) % pes)
    }

    /// `count` objects from this number on.
    pub fn objects(&self, number: u64, count: u64) -> Sym<u8> {
        assert!(FIRST + number + count <= OBJECTS, "no such object");
        // SAFETY: behind the inboxes and before the end of the objects, on a multiple of 16.
        unsafe { Sym::from_parts(START + (FIRST + number) * OBJECT, count * OBJECT) }
    }

    /// An object.
    pub fn object(&self, number: u64) -> Sym<u8> {
        self.objects(number, 1)
    }

    /// One of the two inboxes.
    pub fn inbox(&self, number: u32) -> Inbox {
        let offset = START + u64::from(number) * OF_INBOX * OBJECT;
        Inbox { offset, capacity: OBJECT, signals: Signal(number * 4) }
    }

    /// A signal of the program's own.
    pub fn signal(&self, number: u32) -> Signal {
        Signal(OF_INBOXES + number)
    }

    /// Fills an object here with a pattern.
    pub fn fill(&self, object: Sym<u8>, seed: u64) {
        let start = self.world.local(object);
        for at in 0..object.len() {
            // SAFETY: inside the object, which the program uses as it says.
            unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
        }
    }

    /// Copies bytes to an object here.
    pub fn write(&self, object: Sym<u8>, bytes: &[u8]) {
        let start = self.world.local(object);
        for (at, byte) in (0..object.len()).zip(bytes) {
            // SAFETY: as for `fill`.
            unsafe { start.add(at as usize).write(*byte) };
        }
    }

    /// Whether a call of a kernel has failed.
    pub fn has_failed(&self) -> bool {
        self.world.has_failed()
    }

    /// The bytes of an object here.
    pub fn bytes(&self, object: Sym<u8>) -> Vec<u8> {
        // SAFETY: inside the heap; nobody else runs meanwhile.
        unsafe { std::slice::from_raw_parts(self.world.local(object), object.len() as usize) }.to_vec()
    }

    /// The object here has this pattern.
    pub fn expect(&self, object: Sym<u8>, seed: u64, what: &str) {
        let expected: Vec<u8> = (0..object.len()).map(|at| pattern::byte(seed, at)).collect();
        self.expect_bytes(object, &expected, what);
    }

    /// The object here has these bytes.
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

    /// For messages: what it does now.
    pub fn doing(&self, call: &'static str, round: u32) {
        self.judge.doing[self.me as usize].set((call, round));
    }

    /// Enters a barrier once more.
    pub fn enter(&self) {
        let entered = &self.judge.entered[self.me as usize];
        entered.set(entered.get() + 1);
    }

    /// Nobody may have entered fewer barriers than this one has passed.
    pub fn has_passed(&self) {
        let mine = self.judge.entered[self.me as usize].get();
        if let Some(late) = self.others().find(|pe| self.judge.entered[*pe as usize].get() < mine) {
            self.judge.fail(format!("PE {} has passed barrier {mine}, which PE {late} has not entered", self.me));
        }
    }

    /// The others may have their turns here.
    pub fn stop(&self) {
        cuda_std::thread::sync_threads();
    }
}
