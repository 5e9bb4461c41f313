//! A run: all iterations of a field, with the exchange and norm of a parameter combination. The same loop runs one PE's
//! part of the field and, for reference, the whole field on one device.

use super::args::{HaloExchange, Norm, SyncBy, When};
use super::part::{FieldPart, PartResult};
use super::session::JacobiSession;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Stream};
use ginlab::gin::{GinError, HostPut, Program};
use kernels::jacobi::launched::StepArgs;
use kernels::jacobi::meet::MeetArgs;
use kernels::jacobi::{ABOVE, BELOW, NORM_NEVER, TRACE_WORDS};
use std::ops::Range;
use std::time::Instant;

/// Threads of the norm's only block.
const MEET_THREADS: u32 = 64;
/// Number of polls of a word after which the streams are also checked.
const LOOKS_ALONE: u32 = 1 << 16;
/// A value that differs from all field values in every byte: field values are between -1 and 1.
pub const POISON: f32 = f32::from_bits(0xa5a5_a5a5);
/// Name of kernels and waits in errors.
pub const NAME: &str = "jacobi";

impl JacobiSession {
    /// Runs the launched kernel. If the part exchanges rows, all ranks must call it at the same time.
    pub fn run(&mut self, part: &FieldPart, ranks: &mut Bootstrap) -> Result<PartResult, Failure> {
        let iterations = part.tuple.iterations;
        if !part.alone {
            // Puts of the previous run's last rows are complete when the neighbours' kernels have ended.
            ranks.barrier("end of the previous run")?;
        }
        self.prepare(part)?;
        let graphs = self.record(part)?;
        if !part.alone {
            ranks.barrier("start of a run")?;
        }
        let began = Instant::now();
        for iteration in 1..=iterations {
            let begins = (iteration - 1).is_multiple_of(part.turn());
            match (graphs.get((iteration - 1) as usize / part.turn() as usize), part.nccl) {
                // SAFETY: the graph contains launches with the same requirements as in `step`, and is replayed once.
                (Some(graph), _) if begins => unsafe { self.main.replay(graph) }?,
                (Some(_), _) => {}
                (None, Some(nccl)) => self.step_by_nccl(part, nccl, iteration)?,
                (None, None) => {
                    self.step(part, iteration, &self.main, part.all())?;
                    if !part.alone {
                        self.join(part, iteration, ranks)?;
                    }
                }
            }
            let norms = part.norms_due(iteration);
            if norms > 0 {
                self.norm(part, iteration, norms, ranks)?;
            }
        }
        for stream in [&self.main, &self.push, &self.side] {
            self.world.wait_for_stream(ranks, NAME, stream)?;
        }
        let elapsed = began.elapsed();
        if part.by_signals() {
            self.counted = self.counted.map(|counted| counted + u64::from(iterations) * part.each());
        }
        self.ran(part, elapsed.as_secs_f64(), iterations as usize % 2)
    }

    pub fn ran(&self, part: &FieldPart, seconds: f64, last: usize) -> Result<PartResult, Failure> {
        let mut sum = [0.0f64];
        self.totals.read((part.tuple.iterations as usize - 1) * 8, &mut sum)?;
        let norm = (part.tuple.norm != Norm::Never).then(|| sum[0].sqrt());
        Ok(PartResult { each_us: seconds * 1e6 / f64::from(part.tuple.iterations), last, norm })
    }

    /// Initializes memory before the first iteration, except the field itself.
    pub fn prepare(&mut self, part: &FieldPart) -> Result<(), Failure> {
        let iterations = part.tuple.iterations as usize;
        self.world.prepare()?;
        self.sums.write(0, &vec![0u64; iterations])?;
        if part.alone {
            return Ok(());
        }
        let link = self.link(part);
        self.link.write(0, &[link])?;
        self.tiles.write(0, &[0u64; 2])?;
        if part.traced {
            self.trace.write(0, &vec![0u64; (iterations + 1) * TRACE_WORDS])?;
        }
        for (side, counted) in self.counted.into_iter().enumerate() {
            // Counts for the neighbour's signal of the opposite side. All PEs have counted identically.
            let counts: Vec<u64> = (1..=iterations as u64).map(|iteration| counted + iteration).collect();
            self.counts.write((1 - side) * iterations * 8, &counts)?;
        }
        // Iteration 1 reads the neighbours' initial rows, which every rank can compute.
        let mine = part.problem.rows(self.world.my_pe(), self.world.n_pes());
        let ny = part.problem.ny;
        for (side, row) in [(ABOVE, (mine.start + ny - 1) % ny), (BELOW, mine.end % ny)] {
            self.world.write(link.halo[1][side], &part.problem.first_values(row))?;
            self.copy_to_window(part, side)?;
            // The first iteration's rows are received with the other parity. The resident kernel also sends its initial
            // rows.
            let poisoned = if part.tuple.exchange == HaloExchange::Resident { &[0, 1][..] } else { &[0][..] };
            for &parity in poisoned.iter().filter(|_| part.poisoned) {
                self.world.write(link.halo[parity][side], &vec![POISON; part.problem.pitch() as usize])?;
            }
        }
        Ok(())
    }

    /// Appends the tiles `tiles` of an iteration.
    pub fn step(
        &self,
        part: &FieldPart,
        iteration: u32,
        stream: &Stream,
        tiles: Range<u32>,
    ) -> Result<(), DeviceError> {
        let parity = iteration as usize % 2;
        let (from, to) = (part.fields[1 - parity], part.fields[parity]);
        let first = from as *const f32;
        let beside = if part.alone {
            // Address in the whole field, whose last row is above its first row.
            [first.wrapping_add((part.rows as usize - 1) * part.problem.pitch() as usize), first]
        } else {
            let heap = self.world.description();
            let row = |side: usize| part.received.map(|rows| rows[parity][side] as *const f32);
            [ABOVE, BELOW].map(|side| row(side).unwrap_or(heap.local(self.halo[parity][side]).cast_const()))
        };
        let (across, all) = part.tiles();
        let args = StepArgs {
            from: first,
            to: to as *mut f32,
            beside,
            rows: part.rows,
            nx: part.problem.nx,
            pitch: part.problem.pitch(),
            strip: part.strip,
            across,
            strips: all / across,
            first_tile: tiles.start,
            end_tile: tiles.end,
            iteration,
            norm: part.tuple.norm as u32,
            sum: self.sums.pointer::<cuda_std::memory::Word>().wrapping_add(iteration as usize - 1),
            link: if part.alone { std::ptr::null() } else { self.link.pointer() },
        };
        // SAFETY: the buffers belong to the part and this session, which wait for the stream before they are dropped.
        unsafe { stream.launch(&self.step_kernel, part.grid.min(tiles.len() as u32), part.tuple.block, args) }
    }

    /// Appends the CPU's part of the exchange between two iterations.
    fn join(&mut self, part: &FieldPart, iteration: u32, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if part.tuple.exchange == HaloExchange::HostWrite {
            self.host_write(part, iteration, ranks)?;
        }
        if part.tuple.sync == SyncBy::Barrier {
            let args = MeetArgs { barrier: 1, norm: NORM_NEVER, ..self.meeting(part, iteration, 1, 0) };
            self.launch_meeting(part, &self.main, args)?;
        }
        Ok(())
    }

    /// Sends the rows that the kernel has written to the heap.
    fn host_write(&self, part: &FieldPart, iteration: u32, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let parity = (iteration as usize + 1) % 2;
        let signalled = part.tuple.sync == SyncBy::Neighbours;
        let mut by_rails = Vec::new();
        for side in [ABOVE, BELOW] {
            let peer = self.neighbours()[side];
            let pitch = u64::from(part.problem.pitch());
            let (out, halo) = (self.out[parity][side].slice(0, pitch), self.halo[parity][1 - side].slice(0, pitch));
            let signal = self.signals.at(1 - side as u32);
            let me = self.world.my_pe();
            match (self.world.address_of(halo, peer), self.world.address_of(out, me)) {
                (Some(to), Some(from)) => {
                    // SAFETY: both rows are in heaps, which stay mapped while the world is open. The preceding kernel
                    // has written the row, and the next kernel that writes it is two iterations later.
                    unsafe { self.main.copy(to, from, out.bytes()) }?;
                    let word = self.world.address_of_signal(signal, peer).filter(|_| signalled);
                    if let Some(word) = word {
                        let at = side as u64 * u64::from(part.tuple.iterations) + u64::from(iteration) - 1;
                        let count = self.counts.address() + at * 8;
                        // SAFETY: the word is in a mapped heap. Copies in one stream run in order, and no other
                        // operation changes this signal.
                        unsafe { self.main.copy(word, count, 8) }?;
                    }
                }
                _ => by_rails.push(HostPut { to: halo, from: out, signal: signalled.then_some(signal), peer }),
            }
        }
        if !by_rails.is_empty() {
            let event = self.main.event()?;
            self.world.wait_for(ranks, NAME, || Ok(event.is_complete()?))?;
            self.world.put_signals(&by_rails)?;
        }
        Ok(())
    }

    /// Sums the last `norms` norms up to this iteration over all PEs, after the iteration. Waits for the result as the
    /// parameters specify.
    fn norm(&mut self, part: &FieldPart, iteration: u32, norms: u32, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let counter = if part.alone { &mut self.norms_alone } else { &mut self.norms };
        *counter += 1;
        let round = *counter;
        let args = self.meeting(part, iteration, norms, round);
        if part.tuple.when == When::Delayed {
            let event: Event = self.main.mark()?;
            self.side.wait_for(&event)?;
            self.launch_meeting(part, &self.side, args)?;
            // Waits for the preceding norms while these are computed.
            return self.known(part.alone, round - 1, ranks);
        }
        self.launch_meeting(part, &self.main, args)?;
        self.known(part.alone, round, ranks)
    }

    /// Waits until the norm exchange `round` has completed.
    pub fn known(&self, alone: bool, round: u32, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let word = self.done.pointer::<cuda_std::memory::Word>().wrapping_add(usize::from(alone));
        // SAFETY: a word of pinned host memory, which the kernel stores to and this CPU only reads.
        let seen = || cuda_std::memory::load_acquire_host_u64(unsafe { &*word }) >= u64::from(round);
        // A kernel that failed to start, for example for lack of memory for its threads, never stores the word. If the
        // word takes long, the streams are checked for errors.
        let (mut looks, mut events) = (0u32, Vec::new());
        let is_known = || {
            looks = looks.saturating_add(1);
            if looks == LOOKS_ALONE {
                for stream in [&self.main, &self.push, &self.side] {
                    events.push(stream.event()?);
                }
            }
            for event in &events {
                event.is_complete()?;
            }
            Ok::<bool, GinError>(seen())
        };
        Ok(self.world.wait_for(ranks, NAME, is_known)?)
    }

    /// Returns the arguments to sum `count` iterations up to iteration `last`.
    pub fn meeting(&self, part: &FieldPart, last: u32, count: u32, round: u32) -> MeetArgs {
        let first = (last - count) as usize;
        MeetArgs {
            barrier: 0,
            norm: part.tuple.norm as u32,
            sums: self.sums.pointer::<cuda_std::memory::Word>().wrapping_add(first),
            count,
            round,
            inbox: self.inbox,
            own: self.own,
            all: self.all,
            totals: self.totals.pointer::<f64>().wrapping_add(first),
            done: self.done.pointer::<cuda_std::memory::Word>().wrapping_add(usize::from(part.alone)),
        }
    }

    pub fn launch_meeting(&self, part: &FieldPart, stream: &Stream, args: MeetArgs) -> Result<(), Failure> {
        let mut world = self.world.description();
        if part.alone {
            (world.me, world.pes) = (0, 1);
        }
        // SAFETY: the buffers belong to the part and this session, which wait for the stream before they are dropped.
        // Every PE of the job launches this kernel.
        Ok(unsafe { stream.launch(&self.meet_kernel, 1, MEET_THREADS, Program { world, args }) }?)
    }
}
