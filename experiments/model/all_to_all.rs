//! An all-to-all in virtual time: many machines' modelled cards, event by event, the same on each run.
//!
//! Every GPU writes a block to every GPU of the other machines. Its one proxy thread posts them one after another, at most a
//! window of pieces outstanding; a piece leaves by one of its cards, crosses the network, is taken by the target's card of
//! the same number, and is acknowledged. Both cards work through what they have one piece at a time, which is where pieces
//! that go to one target meet.

use ginlab::fabric::model::{Nic, Picoseconds, Profile};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// GPUs in all, at most: what an event has room for.
pub const MOST_GPUS: u64 = 1 << 20;

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Machines, at least 2.
    pub nodes: u64,
    /// GPUs of each.
    pub gpus_per_node: u64,
    /// Cards of each GPU that are used.
    pub rails: u32,
    /// Bytes from each GPU to each GPU of another machine.
    pub bytes: u64,
    /// Whether each block is cut over the rails; otherwise blocks take the rails in turn, and so do the pieces of one.
    pub split: bool,
    /// Bytes of a piece at most: blocks, or their parts on the rails, are cut into equal ones.
    pub packet: u64,
    /// From when one block is there to be posted until the next one is; of none of them the proxy waits for more than that.
    pub gathering: Picoseconds,
    /// Pieces of a GPU that are outstanding, at most.
    pub window: u32,
    /// In which order a GPU writes.
    pub order: Order,
    /// Which latencies are drawn.
    pub seed: u64,
}

/// In which order a GPU writes to the others.
///
/// Of each value the first paragraph is what `--help` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Each begins behind itself.
    ///
    /// At any time everybody writes to somebody else.
    Rotated,
    /// All begin with the first.
    ///
    /// Everybody writes to the same one.
    Same,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// From the first post to the last acknowledgement.
    pub time: Picoseconds,
    /// Blocks that each GPU sent.
    pub blocks: u64,
    /// Bytes that the busiest and the idlest card received.
    pub received: (u64, u64),
    /// Events worked through.
    pub events: u64,
}

/// Something happens to a piece: it reaches the target's card, or its acknowledgement is back.
/// Packed into one word behind its time, so that a heap of millions of them stays small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u64);

impl Event {
    /// `longer`: the piece is one of those that are a byte longer than the others of its block.
    fn new(acknowledged: bool, longer: bool, from: u64, to: u64, rail: u32) -> Event {
        Event(u64::from(acknowledged) << 63 | u64::from(longer) << 62 | from << 28 | to << 8 | u64::from(rail))
    }

    fn parts(self) -> (bool, bool, u64, u64, usize) {
        let gpu = |shift: u32| self.0 >> shift & (MOST_GPUS - 1);
        (self.0 >> 63 != 0, self.0 >> 62 & 1 != 0, gpu(28), gpu(8), (self.0 & 0xff) as usize)
    }
}

/// A GPU with its proxy and cards.
#[derive(Default)]
struct Gpu {
    nics: Vec<Nic>,
    /// When each card is free to take another piece from the network.
    receiving: Vec<Picoseconds>,
    received: Vec<u64>,
    /// The proxy posts nothing before.
    proxy: Picoseconds,
    /// Steps of the order that are behind it, and pieces of the current block that are posted.
    step: u64,
    piece: u32,
    blocks: u64,
    outstanding: u32,
}

struct Simulation<'a> {
    setting: &'a Setting,
    gpus: Vec<Gpu>,
    events: BinaryHeap<Reverse<(Picoseconds, Event)>>,
    post: Picoseconds,
}

/// Runs it. `look` is called now and then with the share of blocks that is done; its error ends the run.
///
/// # Errors
/// That of `look`.
pub fn run<E>(setting: &Setting, profile: &Profile, mut look: impl FnMut(f64) -> Result<(), E>) -> Result<Outcome, E> {
    /// Events between two looks.
    const LOOK_EVERY: u64 = 1 << 16;
    let mut simulation = Simulation::new(setting, profile);
    for gpu in 0..simulation.gpus.len() as u64 {
        simulation.post(gpu, 0);
    }
    let pieces = setting.pieces() * setting.peers() * simulation.gpus.len() as u64;
    let (mut time, mut events) = (0, 0);
    while let Some(Reverse((now, event))) = simulation.events.pop() {
        simulation.happen(now, event);
        time = now;
        events += 1;
        if events % LOOK_EVERY == 0 {
            look(events as f64 / (2 * pieces) as f64)?;
        }
    }
    let received = || simulation.gpus.iter().flat_map(|gpu| gpu.received.iter().copied());
    let blocks = simulation.gpus.iter().map(|gpu| gpu.blocks).min().unwrap_or_default();
    Ok(Outcome {
        time,
        blocks,
        received: (received().max().unwrap_or_default(), received().min().unwrap_or_default()),
        events,
    })
}

impl Setting {
    /// GPUs that each GPU writes to: those of its own machine are reached otherwise.
    #[must_use]
    pub fn peers(&self) -> u64 {
        (self.nodes - 1) * self.gpus_per_node
    }

    /// Pieces of a block.
    fn pieces(&self) -> u64 {
        let rails = if self.split { u64::from(self.rails).min(self.bytes.max(1)) } else { 1 };
        rails * self.bytes.div_ceil(rails * self.packet.max(1)).max(1)
    }

    /// Bytes of a piece, which may be one of the longer ones.
    fn piece(&self, longer: bool) -> u64 {
        self.bytes / self.pieces() + u64::from(longer)
    }

    /// The GPU that is written to in this step, unless it is of the same machine.
    fn target(&self, from: u64, step: u64) -> Option<u64> {
        let all = self.nodes * self.gpus_per_node;
        let to = match self.order {
            // The machine moves first, so that the cards of one number write to each other.
            Order::Rotated => {
                let (node, gpu) = (from / self.gpus_per_node, from % self.gpus_per_node);
                let node = (node + step % self.nodes) % self.nodes;
                node * self.gpus_per_node + (gpu + step / self.nodes) % self.gpus_per_node
            }
            Order::Same => step % all,
        };
        (to / self.gpus_per_node != from / self.gpus_per_node).then_some(to)
    }
}

impl<'a> Simulation<'a> {
    fn new(setting: &'a Setting, profile: &Profile) -> Self {
        let rails = setting.rails as usize;
        let gpu = |number: u64| Gpu {
            nics: (0..rails as u64).map(|rail| Nic::new(profile, setting.seed ^ number << 8 ^ rail)).collect(),
            receiving: vec![0; rails],
            received: vec![0; rails],
            ..Gpu::default()
        };
        let gpus: Vec<Gpu> = (0..setting.nodes * setting.gpus_per_node).map(gpu).collect();
        Simulation {
            setting,
            events: BinaryHeap::with_capacity(gpus.len() * setting.window.min(1 << 10) as usize),
            gpus,
            post: (profile.post_us.value * 1e6).round() as Picoseconds,
        }
    }

    /// The proxy of this GPU posts what it may.
    fn post(&mut self, number: u64, now: Picoseconds) {
        let setting = self.setting;
        let steps = setting.nodes * setting.gpus_per_node;
        loop {
            let gpu = &mut self.gpus[number as usize];
            if gpu.outstanding >= setting.window || gpu.step == steps {
                return;
            }
            let Some(to) = setting.target(number, gpu.step) else {
                gpu.step += 1;
                continue;
            };
            let piece = u64::from(gpu.piece);
            let turn = if setting.split { piece } else { gpu.blocks * setting.pieces() + piece };
            let rail = (turn % u64::from(setting.rails)) as u32;
            let longer = piece < setting.bytes % setting.pieces();
            gpu.proxy = gpu.proxy.max(now).max((gpu.blocks + 1) * setting.gathering) + self.post;
            let course = gpu.nics[rail as usize].post(gpu.proxy, setting.piece(longer));
            gpu.outstanding += 1;
            gpu.piece += 1;
            if u64::from(gpu.piece) == setting.pieces() {
                (gpu.step, gpu.piece, gpu.blocks) = (gpu.step + 1, 0, gpu.blocks + 1);
            }
            // Its first byte is there a one-way latency after it has left.
            let arrives = course.begun + (course.delivered - course.sent);
            self.events.push(Reverse((arrives, Event::new(false, longer, number, to, rail))));
        }
    }

    fn happen(&mut self, now: Picoseconds, event: Event) {
        let (acknowledged, longer, from, to, rail) = event.parts();
        if acknowledged {
            self.gpus[from as usize].outstanding -= 1;
            self.post(from, now);
            return;
        }
        let bytes = self.setting.piece(longer);
        let wire = self.gpus[from as usize].nics[rail].wire(bytes);
        let target = &mut self.gpus[to as usize];
        let delivered = target.receiving[rail].max(now) + wire;
        target.receiving[rail] = delivered;
        target.received[rail] += bytes;
        let back = delivered + target.nics[rail].latency();
        self.events.push(Reverse((back, Event::new(true, longer, from, to, rail as u32))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn setting(nodes: u64, rails: u32, bytes: u64) -> Setting {
        let (packet, order) = (u64::MAX >> 8, Order::Rotated);
        Setting {
            nodes,
            gpus_per_node: 8,
            rails,
            bytes,
            split: false,
            packet,
            gathering: 0,
            window: 64,
            order,
            seed: 7,
        }
    }

    fn outcome(setting: &Setting) -> Outcome {
        let profile = Profile::named("p5").expect("known");
        run(setting, &profile, |_| Ok::<(), Infallible>(())).expect("cannot fail")
    }

    /// GB/s that a GPU sends.
    fn rate(setting: &Setting) -> f64 {
        let outcome = outcome(setting);
        (outcome.blocks * setting.bytes) as f64 / outcome.time as f64 * 1000.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn every_block_arrives_once(
            nodes in 2u64..6, gpus in 1u64..5, rails in 1u32..5, bytes in 1u64..100_000, split: bool, window in 1u32..20,
            packet in 1000u64..100_000, gathering in 0u64..1_000_000, same: bool, seed: u64,
        ) {
            let order = if same { Order::Same } else { Order::Rotated };
            let setting = Setting { nodes, gpus_per_node: gpus, rails, bytes, split, packet, gathering, window, order, seed };
            let outcome = outcome(&setting);
            let profile = Profile::named("p5").expect("known");
            let mut simulation = Simulation::new(&setting, &profile);
            (0..nodes * gpus).for_each(|gpu| simulation.post(gpu, 0));
            while let Some(Reverse((now, event))) = simulation.events.pop() {
                simulation.happen(now, event);
            }
            prop_assert_eq!(outcome.blocks, setting.peers());
            for gpu in &simulation.gpus {
                prop_assert_eq!(gpu.received.iter().sum::<u64>(), setting.peers() * bytes);
                prop_assert_eq!((gpu.outstanding, gpu.blocks), (0, setting.peers()));
            }
            // No card is faster than its peak.
            let peak = 100e9 / 8.0 * 0.974 / 1e12;
            prop_assert!(outcome.time as f64 * peak >= outcome.received.0 as f64);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_another_one_another() {
        let first = outcome(&setting(4, 4, 8192));
        assert_eq!(outcome(&setting(4, 4, 8192)), first);
        assert_ne!(outcome(&Setting { seed: 8, ..setting(4, 4, 8192) }).time, first.time);
    }

    #[test]
    fn four_rails_are_four_times_one_and_twice_the_nodes_halve_each_pairs_share() {
        let large = |nodes, rails| rate(&setting(nodes, rails, 4 << 20));
        let four = large(4, 4) / large(4, 1);
        assert!((3.8..=4.05).contains(&four), "{four}");
        // What a GPU sends stays; the pairs share it.
        let (few, many) = (large(4, 4) / 24.0, large(8, 4) / 56.0);
        let halved = few / many;
        assert!((2.1..=2.6).contains(&halved), "{halved}: 56 peers instead of 24");
    }

    /// What a card loses at the start of each write is lost once for each piece.
    #[test]
    fn small_pieces_are_slower_and_one_block_for_a_machine_costs_little() {
        let whole = setting(8, 4, 8 << 20);
        let cut = Setting { packet: 128 << 10, ..whole.clone() };
        let gathered =
            Setting { gpus_per_node: 1, bytes: 8 * whole.bytes, split: true, gathering: 150_000_000, ..whole.clone() };
        let (direct, cut, gathered) = (rate(&whole), rate(&cut), rate(&gathered));
        assert!(cut < 0.95 * direct, "{cut} {direct}");
        // What it gains among many machines it does not yet gain among four.
        assert!((0.98 * direct..1.02 * direct).contains(&gathered), "{direct} {gathered}");
    }

    #[test]
    fn everybody_to_the_same_one_is_slower() {
        let same = rate(&Setting { order: Order::Same, ..setting(4, 4, 1 << 20) });
        assert!(same < 0.5 * rate(&setting(4, 4, 1 << 20)), "{same}");
    }
}
