//! Measurement of one case: starts its participants together and reads the outcomes.

use super::super::{Fault, LitmusArgs};
use super::cases::{Executor, LitmusCase, LitmusFence, Placement};
use super::copies;
use super::pe::{Pe, STRIDE};
use crate::error::Failure;
use cuda_std::litmus::AccessOrder;
use cuda_std::memory::Word;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Launch, wait_for};
use ginlab::signals;
use kernels::litmus::{BROKEN, LANES, LITMUS_THREADS, LitmusKernelArgs, OUTCOMES, on_cpu};
use kernels::litmus_bulk::LITMUS_BULK;
use std::time::{Duration, Instant};

/// Number of rounds of the first launch, after which the duration of a round is known.
const FIRST_ROUNDS: u64 = 64;
/// Maximum number of rounds of a launch, whose counts have 32 bits.
const MOST_ROUNDS: u64 = 1 << 30;

/// Counts of a case.
pub struct OutcomeCounts {
    pub outcomes: [u64; OUTCOMES],
    pub time: Duration,
}

/// Runs a case until it has enough trials or its time is over. All PEs must call this function. Only PE 0 returns
/// counts.
pub fn count(args: &LitmusArgs, pe: &Pe, case: &LitmusCase, ranks: &mut Bootstrap) -> Result<OutcomeCounts, Failure> {
    let (groups, blocks, block) = pe.grid(case);
    let trials = args.trials.unwrap_or(if pe.is_emulated() { 1 << 10 } else { 10 << 20 });
    let wanted = trials.div_ceil(u64::from(groups * LANES)).min(MOST_ROUNDS);
    let limit = Duration::from_millis(args.row_time);
    if pe.me == 0 {
        pe.reset(case, groups)?;
    }
    let absent = args.fault == Some(Fault::Absent);
    if case.role_of(Executor::Bulk).is_some() {
        // Compiles the kernel now, so that compilation does not count towards the row's time.
        pe.device.function(&LITMUS_BULK, block)?;
    }
    let mut grid = Grid { pe, case, args: arguments(args, pe, case, groups), blocks, block, absent };
    let began = Instant::now();
    let mut done = 0;
    let mut next = FIRST_ROUNDS.min(wanted);
    while next > 0 {
        grid.args.first_round = pe.round.get();
        grid.args.rounds = next;
        grid.run()?;
        pe.round.set(pe.round.get() + next);
        done += next;
        let left = limit.saturating_sub(began.elapsed()).as_secs_f64();
        let affordable = (left / began.elapsed().as_secs_f64() * done as f64) as u64;
        let mine = if done < FIRST_ROUNDS * 2 { affordable.min(wanted - done) } else { 0 };
        // PE 0 decides.
        next = ranks.value_of_first(&mine, "rounds")?;
    }
    let mut outcomes = pe.counts(case, groups)?;
    if args.fault == Some(Fault::Corrupt) && !case.is_allowed() {
        let strong = outcomes.iter().position(|count| *count > 0).unwrap_or(0);
        outcomes[strong] -= 1;
        outcomes[case.test.weak] += 1;
    }
    Ok(OutcomeCounts { outcomes, time: began.elapsed() })
}

fn arguments(args: &LitmusArgs, pe: &Pe, case: &LitmusCase, groups: u32) -> LitmusKernelArgs {
    let addresses = pe.addresses(case);
    let copies = case.role_of(Executor::CopyEngine).is_some();
    LitmusKernelArgs {
        roles: case.test.for_kernel(),
        count: case.test.count(),
        own: 0,
        same_block: u32::from(case.placement == Placement::Block),
        scope: case.scope as u32,
        order: match case.fence {
            LitmusFence::Pairs(order) => order as u32,
            // Only the reader uses this order.
            LitmusFence::Bulk(_) | LitmusFence::Copies { .. } => AccessOrder::ReleaseAcquire as u32,
        },
        groups,
        payload: if case.test.has_payload { STRIDE } else { 1 },
        reads_final: u32::from(case.test.reads_final),
        polls: match case.role_of(Executor::Cpu) {
            _ if copies => 1 << 14,
            _ if pe.is_emulated() => 4,
            // A CPU reads its cache until the store arrives.
            Some(_) => 512,
            None => 64,
        },
        always_polls: u32::from(copies),
        jitter: if pe.is_emulated() { 1 << 10 } else { 1 << 12 },
        first_round: 0,
        rounds: 0,
        locations: addresses.locations.map(|address| address as *const Word),
        stride: STRIDE,
        flags: addresses.flags as *const Word,
        results: addresses.results as *const Word,
        counts: addresses.counts as *mut u32,
        timeout_ns: args.timeout.as_nanos() as u64,
        abort: pe.abort_word(),
        stop: pe.stop_word(),
    }
}

/// The participants of this PE in one launch.
struct Grid<'a> {
    pe: &'a Pe,
    case: &'a LitmusCase,
    args: LitmusKernelArgs,
    blocks: u32,
    block: u32,
    /// Whether the last role of threads does not start.
    absent: bool,
}

impl Grid<'_> {
    /// Runs all rounds, and waits until all participants of this PE have ended.
    fn run(&self) -> Result<(), Failure> {
        let Grid { pe, case, args, .. } = self;
        let events = self.launch()?;
        let ran = std::thread::scope(|scope| {
            if let (Some(role), 0) = (case.role_of(Executor::Cpu), pe.me) {
                let share = args.groups.div_ceil(pe.cpus());
                for cpu in 0..pe.cpus() {
                    let groups = (cpu * share).min(args.groups)..((cpu + 1) * share).min(args.groups);
                    // SAFETY: the memory of a case with a CPU is host memory, with the sizes of the layout, and
                    // outlives the threads.
                    scope.spawn(move || unsafe { on_cpu(args, role, groups) });
                }
            }
            let copied = match case.fence {
                LitmusFence::Copies { one_stream } => copies::run(pe, args, one_stream),
                _ => Ok(()),
            };
            if copied.is_err() {
                pe.abort();
            }
            let ended = self.wait(&events);
            if ended.is_err() {
                pe.abort();
            }
            copied.and(ended)
        });
        let (test, fence) = (case.test.name, case.fence.name());
        match pe.stopped() {
            0 => ran,
            BROKEN => Err(Failure::Run(format!("{test}, {fence}: a result belongs to another round"))),
            _ => Err(Failure::Timeout(format!(
                "{test}, {fence}: a role has waited for the others for {} s",
                args.timeout_ns / 1_000_000_000
            ))),
        }
    }

    /// Launches the kernels.
    fn launch(&self) -> Result<Vec<Event>, Failure> {
        let Grid { pe, case, args, blocks, block, absent } = self;
        let own = |executor| case.mask(executor, pe.me, pe.pes);
        let grid = |mask: u32| if args.same_block != 0 { *blocks } else { blocks * mask.count_ones() };
        let (mut threads, bulk) = (own(Executor::Thread), own(Executor::Bulk));
        if *absent {
            threads &= !(1 << (args.count - 1));
        }
        // Loading a module may wait for the kernels that run, which wait for those of this module: load both first.
        let by_threads = (threads != 0).then(|| pe.device.function(&LITMUS_THREADS, *block)).transpose()?;
        let by_bulk = (bulk != 0).then(|| pe.device.function(&LITMUS_BULK, *block)).transpose()?;
        let mut events = Vec::new();
        if let Some(function) = by_threads {
            let args = LitmusKernelArgs { own: threads, ..*args };
            // SAFETY: the memories have the sizes of the layout for this number of groups and outlive the grid, because
            // the caller waits for it. All roles have the same arguments.
            unsafe { pe.streams[0].launch(&function, grid(threads), *block, args) }?;
            events.push(pe.streams[0].mark()?);
        }
        if let (Some(function), LitmusFence::Bulk(order)) = (by_bulk, case.fence) {
            let args = LitmusKernelArgs { own: bulk, order: order as u32, ..*args };
            // SAFETY: the memories meet the same requirements as for the kernel above. Blocks have 384 threads, and the
            // payload is 128 bytes.
            unsafe { pe.streams[1].launch(&function, grid(bulk), *block, args) }?;
            events.push(pe.streams[1].mark()?);
        }
        Ok(events)
    }

    /// Waits for the kernels.
    fn wait(&self, events: &[Event]) -> Result<(), Failure> {
        let done = || -> Result<bool, DeviceError> {
            for event in events {
                if !event.is_complete()? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        wait_for(Launch::ENDING, done, || {
            if signals::interrupted() {
                self.pe.abort();
                return Err(Failure::Interrupted);
            }
            Ok(())
        })
    }
}
