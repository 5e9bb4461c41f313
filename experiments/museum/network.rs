//! Memory and rails of the PEs of an exhibit, over the worst-case network, and the order in which they run.
//!
//! Everything runs on one CPU thread: kernels and rules as coroutines, proxies and rails as calls. All choices, of the
//! network and of what runs next, are drawn from one seed. A seed therefore repeats its run exactly.

use ginlab::cuda::{Buffer, Device, MemoryLocation};
use ginlab::fabric::worst::{Who, WorstRail, WorstRegion, WorstSpec};
use ginlab::fabric::{Access, MemoryRange, Rail};
use ginlab::random::{Random, mix};

/// Option that makes only polls and posts count as events. The clock then has no influence.
pub const IDLE: &str = "idle=4";
/// Number of steps without an effect after which a run counts as hanging. The network delays nothing by more than a few
/// times 64 events, and at most four parties run alternately.
const MOST_IDLE: u64 = 20_000;
/// Maximum number of consecutive steps of one party. It is large enough for one PE to be far ahead of the other.
const MOST_IN_A_ROW: u64 = 48;

/// A PE's memory and its rail, connected to the other PEs. The rail is dropped before the memory.
pub struct ExhibitPe {
    pub rail: WorstRail,
    pub memory: Buffer,
}

/// Opens the network of an exhibit: `options` of the network, and its seed.
pub fn spec(options: &str, seed: u64) -> Result<WorstSpec, String> {
    let more = if options.is_empty() { String::new() } else { format!(",{options}") };
    format!("worst:seed={seed},{IDLE}{more}").parse()
}

/// Opens one rail for each PE. The number of a PE identifies it as a peer of all others. Each PE has `bytes` bytes of
/// zeroed memory, which are not registered yet.
pub fn open(spec: &WorstSpec, pes: usize, bytes: usize) -> Result<Vec<ExhibitPe>, String> {
    let node = |rank: usize| {
        let memory = Device::Emulated.allocate(MemoryLocation::File, bytes).map_err(|error| error.to_string())?;
        let who = Who { rank: rank as u32, ..Who::default() };
        let rail = WorstRail::open(spec, who, false).map_err(|error| error.to_string())?;
        Ok::<_, String>(ExhibitPe { rail, memory })
    };
    let mut nodes = (0..pes).map(node).collect::<Result<Vec<_>, _>>()?;
    let addresses: Result<Vec<_>, _> = nodes.iter().map(|node| node.rail.address()).collect();
    let addresses = addresses.map_err(|error| error.to_string())?;
    for node in &mut nodes {
        node.rail.insert_peers(&addresses).map_err(|error| error.to_string())?;
    }
    Ok(nodes)
}

impl ExhibitPe {
    /// Returns the description of this PE's memory for a registration.
    pub fn memory(&self) -> MemoryRange {
        MemoryRange { address: self.memory.address(), bytes: self.memory.bytes(), cuda_device: None }
    }

    /// Registers this PE's memory with its rail.
    pub fn register(&mut self) -> Result<WorstRegion, String> {
        let memory = self.memory();
        // SAFETY: the memory outlives the rail, which is dropped first, and no rail accesses memory between its calls.
        unsafe { self.rail.register(memory, Access::ALL) }.map_err(|error| error.to_string())
    }
}

/// Effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEffect {
    /// The party has done something that others can observe.
    Moved,
    /// The party only polled.
    Idle,
    /// The program of the party has ended. Its rail is still polled.
    Ended,
}

/// Runs the parties in an order drawn from `seed` until the first `programs` of them have ended. Returns false if
/// the run hangs before that.
pub fn run(
    seed: u64,
    parties: usize,
    programs: usize,
    mut step: impl FnMut(usize) -> Result<StepEffect, String>,
) -> Result<bool, String> {
    let mut random = Random(mix(seed ^ 0x6d75_7365_756d));
    let (mut idle, mut ended) = (0, vec![false; parties]);
    while idle < MOST_IDLE {
        let party = random.below(parties as u64) as usize;
        for _ in 0..=random.below(MOST_IN_A_ROW) {
            match step(party)? {
                StepEffect::Moved => idle = 0,
                StepEffect::Idle => idle += 1,
                StepEffect::Ended if ended[party] => idle += 1,
                StepEffect::Ended => (idle, ended[party]) = (0, true),
            }
        }
        if ended[..programs].iter().all(|ended| *ended) {
            return Ok(true);
        }
    }
    Ok(false)
}
