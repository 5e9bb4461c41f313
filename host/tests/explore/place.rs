//! Memory of a PE, as host/gin would allocate it.

use super::machine::ExploreProgram;
use super::seat::{OBJECT, OBJECTS, START};
use cuda_std::memory::Word;
use kernels::collective::BlockCounters;
use kernels::gin::{Control, FailureReport, PeView, SENT_WORDS, SIGNALS, TEAMS, Team, WorldView};
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring};

#[repr(C, align(32))]
struct Slot([Word; 4]);

/// Memory of a PE.
pub struct PeMemory {
    /// Signals, followed by the objects. (The staging words for values, which follow them in a real world, are not
    /// needed.)
    pub heap: Box<[u128]>,
    /// Signal words in host memory. A kernel and the engine access them only through a pointer from [`PeMemory::far`].
    pub far: Box<[u64]>,
    slots: Box<[Slot]>,
    host: HostWords,
    pub device: DeviceWords,
    barriers: [Word; TEAMS],
    sent: Box<[u64]>,
    report: FailureReport,
    abort: Control,
    peers: Vec<PeView>,
    team_pes: Vec<u32>,
    pub rings: Vec<Ring>,
    pub state: BlockCounters,
    pub times: [u64; 8],
}

impl PeMemory {
    pub fn new(log2_slots: u32) -> Box<PeMemory> {
        let word = || Word::new(0);
        let [stop, call, pe, detail, seen, wanted, block, thread] = std::array::from_fn(|_| word());
        let mut place = Box::new(PeMemory {
            heap: vec![0; (START + OBJECTS * OBJECT) as usize / 16].into(),
            far: vec![0; SIGNALS as usize].into(),
            slots: (0..1 << log2_slots).map(|_| Slot(std::array::from_fn(|_| word()))).collect(),
            host: HostWords::default(),
            device: DeviceWords::default(),
            barriers: std::array::from_fn(|_| word()),
            sent: vec![0; SENT_WORDS].into(),
            report: FailureReport { stop, call, pe, detail, seen, wanted, block, thread },
            abort: Control::default(),
            peers: Vec::new(),
            team_pes: Vec::new(),
            rings: Vec::new(),
            state: BlockCounters::default(),
            times: [0; 8],
        });
        let ring = Ring {
            slots: place.slots.as_ptr().cast(),
            host: &place.host,
            device: &place.device,
            log2_capacity: log2_slots,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: u64::MAX,
            role: 0,
            of_block: 0,
            free_below: 1 << log2_slots,
        };
        place.rings.push(ring);
        place
    }

    pub fn heap(&mut self) -> *mut u8 {
        self.heap.as_mut_ptr().cast()
    }

    pub fn far(&mut self) -> *const Word {
        self.far.as_mut_ptr().cast()
    }

    /// Returns the kernel argument of this PE.
    pub fn world(&mut self, program: &ExploreProgram, me: usize, heaps: &[*mut u8]) -> WorldView {
        let node = me / program.local * program.local;
        let mapped = |pe: usize| (node..node + program.local).contains(&pe);
        self.peers =
            (0..program.pes).map(|pe| PeView { heap: if mapped(pe) { heaps[pe] as u64 } else { 0 } }).collect();
        let all = Team { first: 0, pes: program.pes as u32, me: me as u32 };
        self.team_pes = (0..program.pes as u32).collect();
        WorldView {
            me: me as u32,
            pes: program.pes as u32,
            paths: WorldView::BY_RAILS | if program.local > 1 { WorldView::BY_MAPPING } else { 0 },
            outlet_count: 1,
            heap: self.heap(),
            heap_bytes: self.heap.len() as u64 * 16,
            peers: self.peers.as_ptr(),
            rings: self.rings.as_ptr(),
            far: self.far(),
            arrivals: std::ptr::null(),
            team_pes: self.team_pes.as_ptr(),
            // The programs do not use the other teams.
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
