//! Cases of `ginlab proxy`: the kernel through ring and proxy or through the NICs' queues, CPU-initiated writes of the
//! same buffers, a minimal loop, and the bare round trip.

use super::args::{ProxyArgs, ProxyConfig, PutScope};
use super::layout::ProxyLayout;
use super::mode::ProxyMode;
use super::queues::NicQueues;
use super::rank::ProxyRank;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Kernel, Launch};
use ginlab::gin::watch::{HostWait, Work};
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::proxy::{ProxyError, Writes};
use kernels::put_batch::{BatchedCardPutArgs, BatchedPutArgs, PUT_BATCHED_BY_CARD_KERNEL, PUT_BATCHED_KERNEL};
use kernels::put_kernel::{
    BlockResult, CardPutArgs, PUT_BY_CARD_KERNEL, PUT_KERNEL, PutArgs, SCOPE_BLOCK, SCOPE_THREAD,
};
use kernels::ring::Status;
use std::time::Duration;

/// Interval at which the NICs' queues are checked for progress while a kernel runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Cases that are measured interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyCase {
    /// GPU-initiated puts.
    Put(ProxyMode),
    /// GPU-initiated puts through the NICs' own queues.
    Direct(ProxyMode),
    /// CPU-initiated writes of the same buffers over the same rails.
    CpuWrite,
    /// CPU-initiated writes in batches of the given size. All writes of a batch complete before the next batch is
    /// posted.
    CpuBatch(u32),
    /// A loop of fi_write over one buffer on one rail, without ring, engine and checks.
    BareWrite,
    /// Round trip of a flag between device and CPU, with the payload and the fence of a put.
    PingPong,
}

impl ProxyCase {
    pub fn name(self) -> &'static str {
        match self {
            ProxyCase::Put(_) => "put",
            ProxyCase::Direct(_) => "direct",
            ProxyCase::CpuWrite | ProxyCase::CpuBatch(_) => "cpu-write",
            ProxyCase::BareWrite => "bare-write",
            ProxyCase::PingPong => "ping-pong",
        }
    }

    /// Returns the kernel's mode. `None` if no kernel puts, so that the payload must be written by the CPU.
    pub fn of_kernel(self) -> Option<ProxyMode> {
        if let ProxyCase::Put(mode) | ProxyCase::Direct(mode) = self { Some(mode) } else { None }
    }

    /// Returns the number of CPU-initiated writes that complete before the next ones are posted. 0 to wait only at the
    /// end.
    pub fn quiet_every(self) -> u64 {
        if let ProxyCase::CpuBatch(batch) = self { batch.into() } else { 0 }
    }
}

/// Microseconds until the operations of a run were complete, and until they were posted.
pub struct Elapsed {
    pub done: f64,
    pub posted: Option<f64>,
}

/// A parameter combination with the values derived from it on this rank.
pub struct ProxyShape<'a> {
    pub args: &'a ProxyArgs,
    pub tuple: &'a ProxyConfig,
    pub layout: ProxyLayout,
}

/// Runs a case once.
pub fn run(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    case: ProxyCase,
    iterations: u64,
) -> Result<Elapsed, Failure> {
    match case {
        ProxyCase::Put(mode) => run_kernel(shape, rank, ranks, mode, iterations),
        ProxyCase::Direct(mode) => run_direct(shape, rank, ranks, mode, iterations),
        ProxyCase::CpuWrite | ProxyCase::CpuBatch(_) => {
            let time = cpu_write(shape, rank, ranks, iterations, case.quiet_every())?;
            Ok(Elapsed { done: time, posted: None })
        }
        ProxyCase::BareWrite => {
            let route = (shape.tuple.source(), shape.tuple.destination(), rank.target.unwrap_or_default() as u32);
            let count = iterations * shape.layout.producers;
            match rank.group.proxies()[0].bare_write(route, shape.tuple.bytes, count)? {
                Some(time) => Ok(Elapsed { done: time.as_secs_f64() * 1e6, posted: None }),
                None => Err(Failure::Usage("--bare: this fabric has no lower-level interface".into())),
            }
        }
        ProxyCase::PingPong => ping_pong(shape, rank, iterations),
    }
}

/// Returns the kernel's arguments for `iterations` puts per producer.
pub fn put_args(
    shape: &ProxyShape<'_>,
    rank: &ProxyRank,
    ranks: &Bootstrap,
    mode: ProxyMode,
    iterations: u64,
) -> PutArgs {
    PutArgs {
        rings: rank.group.table().pointer(),
        ring_count: rank.group.table().count(),
        scope: match shape.args.scope {
            PutScope::Block => SCOPE_BLOCK,
            PutScope::Thread => SCOPE_THREAD,
        },
        source: rank.payload.pointer(),
        source_region: shape.tuple.source(),
        destination_region: shape.tuple.destination(),
        peer: rank.target.unwrap_or_default() as u32,
        rank: ranks.rank() as u32,
        bytes: shape.tuple.bytes,
        stride: shape.layout.stride,
        window: shape.layout.window as u32,
        iterations: iterations as u32,
        first_iteration: rank.next_iteration,
        quiet_every: mode.quiet_every(),
        fill: shape.args.fills().into(),
        ahead: shape.layout.ahead as u32,
        tickets: rank.tickets.pointer(),
        results: rank.results.pointer(),
    }
}

/// Runs one launch of the put kernel. Times are those of the device's clock.
pub fn run_kernel(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    mode: ProxyMode,
    iterations: u64,
) -> Result<Elapsed, Failure> {
    let put = put_args(shape, rank, ranks, mode, iterations);
    match mode {
        ProxyMode::Batch(batch) => run_grid(shape, rank, ranks, &PUT_BATCHED_KERNEL, BatchedPutArgs { put, batch }),
        _ => run_grid(shape, rank, ranks, &PUT_KERNEL, put),
    }
}

/// Runs one launch of the same kernel, whose puts go to the NICs' queues.
fn run_direct(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    mode: ProxyMode,
    iterations: u64,
) -> Result<Elapsed, Failure> {
    let Some(Ok(queues)) = &rank.queues else { return Err(Failure::Run("no queues were opened".into())) };
    let (channels, channel_count) = (queues.table(), queues.count(shape.tuple.rails));
    let put = put_args(shape, rank, ranks, mode, iterations);
    match mode {
        ProxyMode::Batch(batch) => {
            let args = BatchedCardPutArgs { batched: BatchedPutArgs { put, batch }, channels, channel_count };
            run_grid(shape, rank, ranks, &PUT_BATCHED_BY_CARD_KERNEL, args)
        }
        _ => run_grid(shape, rank, ranks, &PUT_BY_CARD_KERNEL, CardPutArgs { put, channels, channel_count }),
    }
}

/// Runs one launch of a kernel that stores a [`BlockResult`] per block.
pub fn run_grid<A: Copy + Send + Sync + 'static>(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    kernel: &Kernel<A>,
    args: A,
) -> Result<Elapsed, Failure> {
    let (grid, block) = (shape.tuple.grid, shape.tuple.block);
    // SAFETY: the buffers belong to the rank and have the sizes that the layout requires (`Needs`). The launch ends in
    // this function.
    let mut launch = unsafe { rank.device.launch(kernel, grid, block, args) }?;
    HostWait::new(ranks, LOOK_EVERY).wait(&mut &*rank, Launch::ENDING, || launch.is_done())?;
    let mut results = vec![BlockResult::default(); grid as usize];
    rank.results.read(0, &mut results)?;
    if let Some(stop) = results.iter().map(|result| result.stop).find(|stop| *stop != 0) {
        return Err(ended_early(Status(stop), rank, shape));
    }
    let started = results.iter().map(|result| result.started).min().unwrap_or_default();
    let latest = |time: fn(&BlockResult) -> u64| results.iter().map(time).max().unwrap_or_default();
    let micros = |time: u64| time.saturating_sub(started) as f64 / 1000.0;
    Ok(Elapsed { done: micros(latest(|result| result.done)), posted: Some(micros(latest(|result| result.posted))) })
}

/// The work consists of grids and writes of this rank. A proxy that fails aborts them, and their own waits are bounded.
/// A rail that does not detect the exit of a peer would wait until its deadline.
impl Work for &ProxyRank {
    type Error = Failure;

    /// Returns the progress of the NICs' queues. Proxies record theirs.
    fn pulse(&mut self, is_due: bool) -> Result<Option<u64>, Failure> {
        match &self.queues {
            Some(Ok(queues)) if is_due => Ok(Some(queues.pulse()?)),
            _ => Ok(None),
        }
    }

    fn abort(&mut self, _: &Failure) {
        self.stop();
    }
}

/// Returns the failure of a kernel that ended early, with the reasons of the kernel and of the proxies.
fn ended_early(stop: Status, rank: &ProxyRank, shape: &ProxyShape<'_>) -> Failure {
    let failures: Vec<ProxyError> = rank.group.failures().collect();
    let card = rank.queues.iter().flatten().flat_map(NicQueues::failures).map(|said| format!("NIC: {said}"));
    let reasons: Vec<String> = failures.iter().map(ProxyError::to_string).chain(card).collect();
    let text = format!(
        "the kernel ended early ({} B, {} x {}): {}{}{}; {}",
        shape.tuple.bytes,
        shape.tuple.grid,
        shape.tuple.block,
        stop.text(),
        if reasons.is_empty() { "" } else { ": " },
        reasons.join("; "),
        rank.group.ring_states().join("; ")
    );
    if stop == Status::DEADLINE || failures.iter().any(ProxyError::is_timeout) {
        Failure::Timeout(text)
    } else {
        Failure::Run(text)
    }
}

/// Runs the same writes, initiated by the proxy threads. Returns the microseconds until all have completed. If
/// `quiet_every` is above 0, every group of that many writes completes before the next group is posted.
pub fn cpu_write(
    shape: &ProxyShape<'_>,
    rank: &ProxyRank,
    ranks: &mut Bootstrap,
    iterations: u64,
    quiet_every: u64,
) -> Result<f64, Failure> {
    let threads = rank.group.proxies().len() as u64;
    for (thread, proxy) in rank.group.proxies().iter().enumerate() {
        proxy.begin_write(Writes {
            first_producer: thread as u64,
            producer_step: threads,
            producers: shape.layout.producers,
            window: shape.layout.window,
            iterations,
            quiet_every,
            bytes: shape.tuple.bytes,
            stride: shape.layout.stride,
            route: (shape.tuple.source(), shape.tuple.destination(), rank.target.unwrap_or_default() as u32),
        })?;
    }
    let (mut watch, mut longest) = (HostWait::new(ranks, LOOK_EVERY), 0f64);
    for proxy in rank.group.proxies() {
        let mut reason = Ok(());
        let time = proxy.finish_write(|| {
            reason = watch.check(&mut &*rank);
            reason.is_ok()
        });
        reason?;
        longest = longest.max(time?.as_secs_f64() * 1e6);
    }
    Ok(longest)
}

/// Runs the bare round trip: the proxy's thread answers the device's flag.
fn ping_pong(shape: &ProxyShape<'_>, rank: &ProxyRank, iterations: u64) -> Result<Elapsed, Failure> {
    // A lower bound must not do more than the measured operation: if the kernel writes no payload, a single thread
    // raises the flag.
    let (bytes, block) = if !shape.args.fills() { (0, 1) } else { (shape.tuple.bytes / 8 * 8, shape.tuple.block) };
    let flag = Flag { payload: Some((&rank.payload, bytes)), first_poll_ns: 0 };
    let each =
        round_trip(&rank.device, block, iterations, shape.args.meet.timeout, flag, rank.group.proxies().first())?;
    Ok(Elapsed { done: each * iterations as f64, posted: None })
}
