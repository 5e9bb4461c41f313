//! Runs an exhibit that is a kernel: each PE has the kernel, a ring, ginlab's proxy engine and a rail.

use super::network::{self, ExhibitPe, StepEffect};
use cuda_std::emulation::{Stepped, SteppedStop};
use cuda_std::memory::Word;
use ginlab::cuda::Buffer;
use ginlab::fabric::worst::{WorstRail, WorstSpec};
use ginlab::fabric::{Access, RemoteRegion};
use ginlab::proxy::engine::{Engine, SignalRule};
use ginlab::proxy::signal_order::{Rule, SignalWords};
use kernels::command::Command;
use kernels::gin::{Control, FailureReport, PeView, Program, SENT_WORDS, SIGNALS, Signal, Sym, TEAMS, Team, WorldView};
use kernels::museum::{ExhibitArgs, SEEN, WORDS, mark};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring};
use std::time::Duration;

/// A kernel of kernels/src/museum.
pub type ExhibitKernel = unsafe fn(Program<ExhibitArgs>);

/// Number of PEs of an exhibit.
const PES: usize = 2;
/// Number of rounds of an exhibit.
const ROUNDS: u32 = 24;
/// Binary logarithm of the ring's slots.
const LOG2_SLOTS: u32 = 5;
/// Maximum number of commands in flight.
const WINDOW: usize = 64;
/// Maximum time without progress of an engine. The run's own bound expires earlier.
const STALL: Duration = Duration::from_secs(60);
/// Maximum number of polls until the transfers of a failed run have ended.
const ENDING_POLLS: u32 = 100_000;

/// Offset of the first object in a heap.
const START: u64 = SIGNALS as u64 * 8;
/// Size in bytes of the blocks of all rounds.
const BLOCKS: u64 = ROUNDS as u64 * WORDS * 8;
/// Size of a heap: signals, sources, destinations, flags, and what the kernel has seen.
const HEAP: u64 = START + 2 * BLOCKS + 2 * 8 + SEEN * 8;

#[repr(C, align(32))]
struct Slot([Word; 4]);

/// Memory of a PE besides its heap, as host/gin would allocate it.
struct PeMemory {
    far: Box<[u64]>,
    slots: Box<[Slot]>,
    host: HostWords,
    device: DeviceWords,
    barriers: [Word; TEAMS],
    sent: Box<[u64]>,
    report: FailureReport,
    abort: Control,
    peers: Vec<PeView>,
    team_pes: Vec<u32>,
    rings: Vec<Ring>,
}

/// A PE. The fields are dropped in this order: the kernel and the engine before the memory that they use.
struct Pe {
    kernel: Stepped,
    ended: bool,
    engine: Engine<WorstRail>,
    consumer: Consumer,
    /// Watermark last published to the kernel.
    published: u64,
    /// Description of the heap for the other PEs, by rail.
    remotes: Vec<RemoteRegion>,
    _place: Box<PeMemory>,
    heap: Buffer,
}

/// Runs a kernel over the network. Returns the mistake that a PE or the network has found.
pub fn run(kernel: ExhibitKernel, fixed: bool, spec: &WorstSpec) -> Result<(), String> {
    let mut pes = Vec::new();
    for (me, node) in network::open(spec, PES, HEAP as usize)?.into_iter().enumerate() {
        pes.push(Pe::open(me, node, kernel, fixed)?);
    }
    let heaps: Vec<_> = pes.iter().map(|pe| vec![pe.remotes.clone()]).collect();
    for pe in &mut pes {
        pe.engine.set_peers(&heaps).map_err(|error| error.to_string())?;
    }
    // The kernels are the first parties, and their proxies are the next ones.
    let ended = network::run(spec.seed, 2 * PES, PES, |party| match party {
        0..PES => pes[party].step_kernel(),
        _ => pes[party - PES].step_proxy(),
    });
    let seen = pes.iter().enumerate().find_map(|(me, pe)| pe.seen(spec).map(|text| format!("PE {me}, {text}")));
    let waits: Vec<String> = pes.iter().enumerate().filter_map(|(me, pe)| pe.waits(me)).collect();
    settle(&mut pes);
    match (seen, ended?) {
        (Some(seen), _) => Err(seen),
        (None, true) => Ok(()),
        (None, false) => Err(format!("hangs: {}", waits.join("; "))),
    }
}

/// Ends the transfers of a run, so that the rails can be closed.
fn settle(pes: &mut [Pe]) {
    for _ in 0..ENDING_POLLS {
        if pes.iter().all(|pe| pe.engine.posted() == 0) {
            return;
        }
        for pe in pes.iter_mut() {
            // A failure at this point follows from the one that ended the run.
            let _ = pe.engine.progress(&mut ());
        }
    }
}

/// Returns the arguments of a kernel. The objects have the same offsets on both PEs.
fn arguments(fixed: bool) -> ExhibitArgs {
    let (rounds, mut offset) = (ROUNDS, START);
    let mut object = |words: u64| {
        // SAFETY: the objects follow one another within `HEAP`, at multiples of 8.
        let object = unsafe { Sym::from_parts(offset, words) };
        offset += words * 8;
        object
    };
    let [from, to, flags, seen] = [BLOCKS / 8, BLOCKS / 8, 2, SEEN].map(&mut object);
    ExhibitArgs { from, to, flags, arrived: Signal(0), told: Signal(rounds), rounds, fixed: fixed.into(), seen }
}

/// Describes a mistake: the word that a kernel has found in a round, and the word that it expected.
fn described(spec: &WorstSpec, [_, round, found, expected]: [u64; SEEN as usize]) -> String {
    if expected != mark(round as u32) {
        return format!("round {round}: the count is {found} instead of {expected}");
    }
    let poison = u64::from(spec.poison_byte()) * 0x0101_0101_0101_0101;
    let other = (0..ROUNDS).find(|other| found == mark(*other));
    let what = match other {
        _ if found == 0 => "nothing has been written there".to_owned(),
        _ if found == poison => "bytes that had not arrived".to_owned(),
        Some(other) => format!("the block of round {other}"),
        None => "a block that had arrived in part".to_owned(),
    };
    format!("round {round}: read {found:#018x} instead of {expected:#018x}: {what}")
}

impl Pe {
    fn open(me: usize, node: ExhibitPe, kernel: ExhibitKernel, fixed: bool) -> Result<Pe, String> {
        let (args, memory) = (arguments(fixed), node.memory());
        let ExhibitPe { rail, memory: heap } = node;
        let content: Vec<u64> = (0..ROUNDS).flat_map(|round| [mark(round); WORDS as usize]).collect();
        heap.write(args.from.offset() as usize, &content).map_err(|error| error.to_string())?;
        let mut place = PeMemory::new();
        let mut engine = Engine::new(vec![rail], WINDOW, STALL);
        // SAFETY: the place outlives the engine, which is dropped first.
        let words = unsafe { SignalWords::at(place.far.as_mut_ptr().cast()) };
        let rule = SignalRule { rule: Rule::default(), me, ranks: PES, early: false, words };
        engine.set_signals(rule).map_err(|error| error.to_string())?;
        // SAFETY: the heap outlives the engine, which is dropped first.
        let remotes = unsafe { engine.register(memory, Access::ALL, None) }.map_err(|error| error.to_string())?;
        engine.accept_values().map_err(|error| error.to_string())?;
        let world = place.world(me as u32, heap.pointer());
        let kernel = Stepped::new(move || {
            // SAFETY: the arguments are objects of the heap, which outlives the kernel.
            unsafe { kernel(Program { world, args }) };
        });
        let kernel = kernel.map_err(|error| format!("no memory for the stack of a kernel: {error}"))?;
        // SAFETY: the ring outlives the consumer, and there is no other consumer.
        let consumer = unsafe { Consumer::new(&place.rings[0]) };
        Ok(Pe { kernel, ended: false, engine, consumer, published: 0, remotes, _place: place, heap })
    }

    /// Runs the kernel until it spins or ends.
    fn step_kernel(&mut self) -> Result<StepEffect, String> {
        if self.kernel.turn()? == SteppedStop::Ended {
            self.ended = true;
            return Ok(StepEffect::Ended);
        }
        Ok(StepEffect::Idle)
    }

    /// Performs one iteration of the proxy (host/proxy/serve.rs).
    fn step_proxy(&mut self) -> Result<StepEffect, String> {
        let Pe { consumer, engine, published, .. } = self;
        let mut popped = Vec::new();
        while popped.len() < engine.room()
            && let Some(words) = consumer.pop()
        {
            popped.push(words);
        }
        consumer.acquire();
        consumer.publish_tail();
        for words in &popped {
            let command = Command::decode(*words).ok_or("a kernel pushed words that are not a command")?;
            engine.submit(&command).map_err(|error| error.to_string())?;
        }
        engine.pump(&mut ()).map_err(|error| error.to_string())?;
        let completed = engine.progress(&mut ()).map_err(|error| error.to_string())?;
        if engine.watermark() != *published {
            *published = engine.watermark();
            consumer.publish_watermark(*published);
        }
        Ok(if completed || !popped.is_empty() { StepEffect::Moved } else { StepEffect::Idle })
    }

    /// Returns the first mistake that the kernel has found.
    fn seen(&self, spec: &WorstSpec) -> Option<String> {
        let mut seen = [0; SEEN as usize];
        self.heap.read(arguments(false).seen.offset() as usize, &mut seen).ok()?;
        (seen[0] != 0).then(|| described(spec, seen))
    }

    /// Describes what the PE waits for, if its kernel has not ended.
    fn waits(&self, me: usize) -> Option<String> {
        let (done, all) = (self.published, self.consumer.cursor());
        (!self.ended).then(|| format!("the kernel of PE {me} waits; {done} of its {all} commands are complete"))
    }
}

impl PeMemory {
    fn new() -> Box<PeMemory> {
        let word = || Word::new(0);
        let [stop, call, pe, detail, seen, wanted, block, thread] = std::array::from_fn(|_| word());
        let mut place = Box::new(PeMemory {
            far: vec![0; SIGNALS as usize].into(),
            slots: (0..1 << LOG2_SLOTS).map(|_| Slot(std::array::from_fn(|_| word()))).collect(),
            host: HostWords::default(),
            device: DeviceWords::default(),
            barriers: std::array::from_fn(|_| word()),
            sent: vec![0; SENT_WORDS].into(),
            report: FailureReport { stop, call, pe, detail, seen, wanted, block, thread },
            abort: Control::default(),
            peers: vec![PeView { heap: 0 }; PES],
            team_pes: (0..PES as u32).collect(),
            rings: Vec::new(),
        });
        let ring = Ring {
            slots: place.slots.as_ptr().cast(),
            host: &place.host,
            device: &place.device,
            log2_capacity: LOG2_SLOTS,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: u64::MAX,
            role: 0,
            of_block: 0,
            free_below: 1 << LOG2_SLOTS,
        };
        place.rings.push(ring);
        place
    }

    /// Returns the world of the PE's kernel. All waits are unlimited: the run itself is bounded.
    fn world(&mut self, me: u32, heap: *mut u8) -> WorldView {
        let all = Team { first: 0, pes: PES as u32, me };
        WorldView {
            me,
            pes: PES as u32,
            paths: WorldView::BY_RAILS,
            outlet_count: 1,
            heap,
            heap_bytes: HEAP,
            peers: self.peers.as_ptr(),
            rings: self.rings.as_ptr(),
            far: self.far.as_ptr().cast(),
            arrivals: std::ptr::null(),
            team_pes: self.team_pes.as_ptr(),
            // The kernels use no other team.
            teams: [all; TEAMS],
            barriers: self.barriers.as_ptr(),
            sent: self.sent.as_mut_ptr().cast(),
            report: &self.report,
            abort: &self.abort,
            timeout_ns: u64::MAX,
            channels: std::ptr::null(),
        }
    }
}
