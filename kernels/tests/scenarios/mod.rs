//! Which lanes of a warp push to which rings: scenarios that the seeded orders of the emulated device and loom both play.

/// Lanes of one warp that push together, and what they push to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// In a few words.
    pub name: &'static str,
    /// The lanes that push; the others do something else.
    pub lanes: u32,
    /// Rings, dealt to the lanes in turn.
    pub rings: u32,
    /// Slots of each ring, as a power of two.
    pub log2_capacity: u32,
    /// One element of the whole warp, and not one of each lane.
    pub together: bool,
}

const FULL: Scenario = Scenario { name: "full warp", lanes: u32::MAX, rings: 1, log2_capacity: 6, together: false };

/// Every way that a warp's push can take.
pub const SCENARIOS: [Scenario; 8] = [
    FULL,
    Scenario { name: "some lanes", lanes: 0x8f0f_3354, ..FULL },
    Scenario { name: "one lane", lanes: 1 << 9, ..FULL },
    Scenario { name: "ring smaller than a warp", log2_capacity: 2, ..FULL },
    Scenario { name: "some lanes, ring smaller than these", lanes: 0x00ff_ff00, log2_capacity: 1, ..FULL },
    Scenario { name: "two rings in one warp", rings: 2, ..FULL },
    Scenario { name: "one element of a full warp", together: true, log2_capacity: 1, ..FULL },
    Scenario { name: "one element of some lanes", together: true, lanes: 0x0ff0_0030, ..FULL },
];

impl Scenario {
    /// The ring of a lane that pushes.
    pub fn ring(&self, lane: u32) -> usize {
        (lane % self.rings) as usize
    }

    /// Lanes that push an element: one for all when they do it together.
    pub fn producers(&self) -> impl Iterator<Item = u32> + use<> {
        let lanes = if self.together { self.lanes & self.lanes.wrapping_neg() } else { self.lanes };
        (0..u32::BITS).filter(move |lane| lanes >> lane & 1 == 1)
    }
}

/// What a proxy has seen of a scenario: each producer's elements, each once, in order, on its ring.
pub struct Account {
    scenario: Scenario,
    producers: Vec<u32>,
    next: Vec<u64>,
}

impl Account {
    /// Of these of the scenario's producers.
    pub fn new(scenario: Scenario, producers: Vec<u32>) -> Account {
        Account { scenario, producers, next: vec![0; u32::BITS as usize] }
    }

    /// An element of this ring.
    pub fn seen(&mut self, ring: usize, lane: u32, number: u64) {
        let Scenario { name, .. } = self.scenario;
        assert!(self.producers.contains(&lane), "{name}: lane {lane} pushes nothing");
        assert_eq!(ring, self.scenario.ring(lane), "{name}: an element of lane {lane} on another ring");
        assert_eq!(number, self.next[lane as usize], "{name}: an element of lane {lane} out of order");
        self.next[lane as usize] += 1;
    }

    /// Whether each producer's first so many have been seen.
    pub fn is_complete(&self, pushes: u64) -> bool {
        self.producers.iter().all(|lane| self.next[*lane as usize] == pushes)
    }
}
