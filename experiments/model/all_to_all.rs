//! Discrete-event simulation of an all-to-all between modelled NICs of many machines. Results are deterministic.
//!
//! Every GPU writes a block to every GPU of the other machines. Its proxy thread posts the blocks one after another,
//! with at most `window` outstanding pieces. A piece leaves through one of the GPU's NICs, crosses the network, is
//! received by the target's NIC of the same number, and is acknowledged. Both NICs process one piece at a time, so
//! pieces for the same target queue up.

use ginlab::fabric::model::{Nic, Picoseconds, Profile};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum total number of GPUs, limited by the encoding of an event.
pub const MOST_GPUS: u64 = 1 << 20;

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct AllToAllParameters {
    /// Number of machines, at least 2.
    pub nodes: u64,
    /// GPUs per machine.
    pub gpus_per_node: u64,
    /// NICs used per GPU.
    pub rails: u32,
    /// Bytes from each GPU to each GPU of another machine.
    pub bytes: u64,
    /// Whether each block is striped over the rails. Otherwise blocks, and the pieces of a block, use the rails
    /// round-robin.
    pub split: bool,
    /// Maximum bytes of a piece. Blocks, or their parts on the rails, are split into pieces of equal size.
    pub packet: u64,
    /// Interval at which gathered blocks become available for posting. 0 if all are available at the start.
    pub gathering: Picoseconds,
    /// Maximum number of outstanding pieces per GPU.
    pub window: u32,
    /// Order in which a GPU writes to the others.
    pub order: WriteOrder,
    /// Seed of the latencies.
    pub seed: u64,
}

/// Order in which a GPU writes to the others.
///
/// The first paragraph of each value's doc is its `--help` text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WriteOrder {
    /// Each GPU starts with the next one
    ///
    /// All GPUs write to different targets at any time.
    Rotated,
    /// All GPUs start with the first one
    ///
    /// All GPUs write to the same target.
    Same,
}

/// Results of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllToAllResult {
    /// Time from the first post to the last acknowledgement.
    pub time: Picoseconds,
    /// Number of blocks that each GPU sent.
    pub blocks: u64,
    /// Bytes received by the busiest and by the least busy NIC.
    pub received: (u64, u64),
    /// Number of processed events.
    pub events: u64,
}

/// An event of a piece: the piece reaches the target's NIC, or its acknowledgement returns. The event is packed into
/// one word to keep a heap of millions of events small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u64);

impl Event {
    /// Creates an event. `longer` marks a piece that is one byte longer than others of its block.
    fn new(acknowledged: bool, longer: bool, from: u64, to: u64, rail: u32) -> Event {
        Event(u64::from(acknowledged) << 63 | u64::from(longer) << 62 | from << 28 | to << 8 | u64::from(rail))
    }

    fn parts(self) -> (bool, bool, u64, u64, usize) {
        let gpu = |shift: u32| self.0 >> shift & (MOST_GPUS - 1);
        (self.0 >> 63 != 0, self.0 >> 62 & 1 != 0, gpu(28), gpu(8), (self.0 & 0xff) as usize)
    }
}

/// A GPU with its proxy and NICs.
#[derive(Default)]
struct Gpu {
    nics: Vec<Nic>,
    /// Time at which each NIC can receive the next piece from the network.
    receiving: Vec<Picoseconds>,
    received: Vec<u64>,
    /// Time before which the proxy cannot post.
    proxy: Picoseconds,
    /// Completed steps of the order, and posted pieces of the current block.
    step: u64,
    piece: u32,
    blocks: u64,
    outstanding: u32,
}

struct Simulation<'a> {
    setting: &'a AllToAllParameters,
    gpus: Vec<Gpu>,
    events: BinaryHeap<Reverse<(Picoseconds, Event)>>,
    post: Picoseconds,
}

/// Runs a simulation. Calls `look` periodically with the fraction of blocks that is done. An error of `look` ends the
/// run.
///
/// # Errors
/// Returns the error of `look`.
pub fn run<E>(
    setting: &AllToAllParameters,
    profile: &Profile,
    mut look: impl FnMut(f64) -> Result<(), E>,
) -> Result<AllToAllResult, E> {
    /// Number of events between two calls of `look`.
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
    Ok(AllToAllResult {
        time,
        blocks,
        received: (received().max().unwrap_or_default(), received().min().unwrap_or_default()),
        events,
    })
}

impl AllToAllParameters {
    /// Returns the number of GPUs that each GPU writes to. GPUs of its machine are not included.
    #[must_use]
    pub fn peers(&self) -> u64 {
        (self.nodes - 1) * self.gpus_per_node
    }

    /// Returns the number of pieces per block.
    fn pieces(&self) -> u64 {
        let rails = if self.split { u64::from(self.rails).min(self.bytes.max(1)) } else { 1 };
        rails * self.bytes.div_ceil(rails * self.packet.max(1)).max(1)
    }

    /// Returns the bytes of a piece, which may be one of the longer ones.
    fn piece(&self, longer: bool) -> u64 {
        self.bytes / self.pieces() + u64::from(longer)
    }

    /// Returns the GPU that is the target of this step. `None` if it is in the same machine.
    fn target(&self, from: u64, step: u64) -> Option<u64> {
        let all = self.nodes * self.gpus_per_node;
        let to = match self.order {
            // The machine index advances before the position in the machine, so that NICs of the same number write to
            // each other.
            WriteOrder::Rotated => {
                let (node, gpu) = (from / self.gpus_per_node, from % self.gpus_per_node);
                let node = (node + step % self.nodes) % self.nodes;
                node * self.gpus_per_node + (gpu + step / self.nodes) % self.gpus_per_node
            }
            WriteOrder::Same => step % all,
        };
        (to / self.gpus_per_node != from / self.gpus_per_node).then_some(to)
    }
}

impl<'a> Simulation<'a> {
    fn new(setting: &'a AllToAllParameters, profile: &Profile) -> Self {
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

    /// Posts pieces of this GPU's proxy until the window is full or all blocks are posted.
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
            // The first byte arrives one one-way latency after it was sent.
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

    fn setting(nodes: u64, rails: u32, bytes: u64) -> AllToAllParameters {
        let (packet, order) = (u64::MAX >> 8, WriteOrder::Rotated);
        AllToAllParameters {
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

    fn outcome(setting: &AllToAllParameters) -> AllToAllResult {
        let profile = Profile::named("p5").expect("known");
        run(setting, &profile, |_| Ok::<(), Infallible>(())).expect("cannot fail")
    }

    /// Returns the GB/s that a GPU sends.
    fn rate(setting: &AllToAllParameters) -> f64 {
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
            let order = if same { WriteOrder::Same } else { WriteOrder::Rotated };
            let setting = AllToAllParameters { nodes, gpus_per_node: gpus, rails, bytes, split, packet, gathering, window, order, seed };
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
            // No NIC exceeds its peak rate.
            let peak = 100e9 / 8.0 * 0.974 / 1e12;
            prop_assert!(outcome.time as f64 * peak >= outcome.received.0 as f64);
        }
    }

    #[test]
    fn runs_are_deterministic_per_seed() {
        let first = outcome(&setting(4, 4, 8192));
        assert_eq!(outcome(&setting(4, 4, 8192)), first);
        assert_ne!(outcome(&AllToAllParameters { seed: 8, ..setting(4, 4, 8192) }).time, first.time);
    }

    #[test]
    fn bandwidth_scales_with_rails_and_nodes() {
        let large = |nodes, rails| rate(&setting(nodes, rails, 4 << 20));
        let four = large(4, 4) / large(4, 1);
        assert!((3.8..=4.05).contains(&four), "{four}");
        // A GPU's total rate stays the same and is shared by its pairs.
        let (few, many) = (large(4, 4) / 24.0, large(8, 4) / 56.0);
        let halved = few / many;
        assert!((2.1..=2.6).contains(&halved), "{halved}: 56 peers instead of 24");
    }

    /// The fixed cost of a write at the NIC is incurred once per piece.
    #[test]
    fn small_packets_are_slower_and_gathering_is_cheap() {
        let whole = setting(8, 4, 8 << 20);
        let cut = AllToAllParameters { packet: 128 << 10, ..whole.clone() };
        let gathered = AllToAllParameters {
            gpus_per_node: 1,
            bytes: 8 * whole.bytes,
            split: true,
            gathering: 150_000_000,
            ..whole.clone()
        };
        let (direct, cut, gathered) = (rate(&whole), rate(&cut), rate(&gathered));
        assert!(cut < 0.95 * direct, "{cut} {direct}");
        // Gathering only pays off with many machines; with few it costs little.
        assert!((0.98 * direct..1.02 * direct).contains(&gathered), "{direct} {gathered}");
    }

    #[test]
    fn same_order_is_slower_than_rotated() {
        let same = rate(&AllToAllParameters { order: WriteOrder::Same, ..setting(4, 4, 1 << 20) });
        assert!(same < 0.5 * rate(&setting(4, 4, 1 << 20)), "{same}");
    }
}
