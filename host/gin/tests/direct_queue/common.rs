//! Runs a grid of the emulated device over the software NIC in this process, and collects results of both.

use efa_queue::request::To;
use ginlab_cuda::{Buffer, Device, DeviceError, MemoryLocation};
use ginlab_gin::direct::{CardOptions, QueueMemory, QueueObservations, QueueOptions, QueueTable, Regions, SoftNic};
use kernels::block::BlockResult;
use kernels::direct::QueueFailure;
use kernels::direct_put::{DIRECT_PUT, DirectPutArgs, slot_seed};
use kernels::ring::Status;
use std::collections::BTreeMap;
use std::time::Duration;

/// Timeout of waits that are expected to succeed.
pub const PATIENCE: Duration = Duration::from_secs(20);
const SOURCE: u32 = 0x12_3456;
const DESTINATION: u32 = 0x89ab_cdef;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct QueueRunConfig {
    pub grid: u32,
    pub block: u32,
    pub iterations: u32,
    pub quiet_every: u32,
    pub bytes: u32,
    pub queues: u32,
    pub back_at: u64,
    pub options: QueueOptions,
}

impl Default for QueueRunConfig {
    fn default() -> Self {
        let options =
            QueueOptions { depth: 16, completions: 32, max_batch: 5, timeout: PATIENCE, ..QueueOptions::default() };
        QueueRunConfig { grid: 3, block: 40, iterations: 5, quiet_every: 0, bytes: 21, queues: 2, back_at: 0, options }
    }
}

/// Results of a run.
#[derive(Debug)]
pub struct QueueRunResult {
    /// Status of each block.
    pub stops: Vec<Status>,
    /// First error of each queue.
    pub failures: Vec<Option<QueueFailure>>,
    pub found: Vec<QueueObservations>,
    /// Number of puts whose bytes are not at the destination.
    pub missing: usize,
}

impl QueueRunResult {
    /// Returns whether every put completed and all bytes arrived.
    pub fn is_whole(&self) -> bool {
        let ended = self.stops.iter().all(|stop| stop.0 == 0) && self.failures.iter().all(Option::is_none);
        ended && self.missing == 0 && self.found.iter().all(|found| found.wrong.is_none())
    }
}

/// Runs `case` over a NIC with these options. This function sets the regions.
pub fn run(case: &QueueRunConfig, card: CardOptions) -> QueueRunResult {
    run_with(case, card, |_, _| ())
}

/// Like [`run`], but calls `meanwhile` once the grid is running.
pub fn run_with(
    case: &QueueRunConfig,
    mut card: CardOptions,
    meanwhile: impl FnOnce(&[QueueMemory], DirectPutArgs),
) -> QueueRunResult {
    let device = Device::Emulated;
    let stride = case.bytes.next_multiple_of(8);
    let slots = u64::from(case.grid * case.block * case.iterations);
    let bytes = slots * u64::from(stride);
    let memory = |_| device.allocate(MemoryLocation::Host, bytes as usize);
    let [source, destination]: [Buffer; 2] = [0, 1].map(memory).map(|buffer| buffer.expect("memory"));
    let region = |buffer: &Buffer| (buffer.address(), bytes);
    card.regions = Some(Regions(BTreeMap::from([(SOURCE, region(&source)), (DESTINATION, region(&destination))])));
    card.yields = true;
    let queue = |_| QueueMemory::new(&device, case.options);
    let queues = (0..case.queues).map(queue).collect::<Result<Vec<_>, _>>().expect("queues");
    let table = QueueTable::new(&device, &queues).expect("a table");
    let results =
        device.allocate(MemoryLocation::Device, case.grid as usize * size_of::<BlockResult>()).expect("results");
    let args = DirectPutArgs {
        queues: table.pointer(),
        queue_count: case.queues,
        iterations: case.iterations,
        quiet_every: case.quiet_every,
        window: case.iterations,
        bytes: case.bytes,
        stride,
        fill: 1,
        seed: 7,
        counter_alone: 0,
        back_at: case.back_at,
        to: To { handle: 3, pair: 9, key: 11 },
        local_key: SOURCE,
        key: DESTINATION,
        source: source.address(),
        destination: destination.address(),
        results: results.pointer(),
    };
    // SAFETY: the regions outlive the NIC.
    let card = unsafe { SoftNic::start(queues, card) }.expect("a card");
    // SAFETY: everything that the arguments point to outlives the launch.
    let launch = unsafe { device.launch(&DIRECT_PUT, case.grid, case.block, args) }.expect("a launch");
    meanwhile(card.queues(), args);
    launch.wait(|| Ok::<(), DeviceError>(())).expect("the grid");
    let mut blocks = vec![BlockResult::default(); case.grid as usize];
    results.read(0, &mut blocks).expect("results");
    let stops = blocks.iter().map(|block| Status(block.stop)).collect();
    let failures = card.queues().iter().map(|queue| queue.failure().expect("read")).collect();
    let found = card.finish().expect("the card");
    let mut all = vec![0u8; bytes as usize];
    destination.read(0, &mut all).expect("read");
    let is_there = |slot: &u64| {
        let offset = slot * u64::from(stride);
        let seed = slot_seed(args.seed, offset);
        (0..u64::from(case.bytes)).all(|byte| all[(offset + byte) as usize] == payload_pattern::byte(seed, byte))
    };
    let missing = (0..slots).filter(|slot| !is_there(slot)).count();
    QueueRunResult { stops, failures, found, missing }
}
