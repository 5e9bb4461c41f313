//! Scenarios of warp pushes: the lanes that push, and their rings. Used by loom and by the seeded orders of the
//! emulated device.

/// Lanes of one warp that push together, and the rings to which they push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Short description.
    pub name: &'static str,
    /// Mask of the lanes that push.
    pub lanes: u32,
    /// Number of rings, assigned to the lanes round-robin.
    pub rings: u32,
    /// Number of slots per ring, as a power of two.
    pub log2_capacity: u32,
    /// Whether the warp pushes one element together instead of one element per lane.
    pub together: bool,
}

const FULL: Scenario = Scenario { name: "full warp", lanes: u32::MAX, rings: 1, log2_capacity: 6, together: false };

/// One scenario per code path of a warp's push.
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
    /// Returns the ring of a lane that pushes.
    pub fn ring(&self, lane: u32) -> usize {
        (lane % self.rings) as usize
    }

    /// Returns the lanes that push an element: a single lane if they push it together.
    pub fn producers(&self) -> impl Iterator<Item = u32> + use<> {
        let lanes = if self.together { self.lanes & self.lanes.wrapping_neg() } else { self.lanes };
        (0..u32::BITS).filter(move |lane| lanes >> lane & 1 == 1)
    }
}

/// Elements that a proxy has received in a scenario. Checks that each element arrives once, in order and on its ring.
pub struct Account {
    scenario: Scenario,
    producers: Vec<u32>,
    next: Vec<u64>,
}

impl Account {
    /// Creates an account that expects elements only of `producers`.
    pub fn new(scenario: Scenario, producers: Vec<u32>) -> Account {
        Account { scenario, producers, next: vec![0; u32::BITS as usize] }
    }

    /// Records an element received on `ring`.
    pub fn seen(&mut self, ring: usize, lane: u32, number: u64) {
        let Scenario { name, .. } = self.scenario;
        assert!(self.producers.contains(&lane), "{name}: lane {lane} pushes nothing");
        assert_eq!(ring, self.scenario.ring(lane), "{name}: an element of lane {lane} on another ring");
        assert_eq!(number, self.next[lane as usize], "{name}: an element of lane {lane} out of order");
        self.next[lane as usize] += 1;
    }

    /// Returns whether the first `pushes` elements of each producer have been received.
    pub fn is_complete(&self, pushes: u64) -> bool {
        self.producers.iter().all(|lane| self.next[*lane as usize] == pushes)
    }
}
