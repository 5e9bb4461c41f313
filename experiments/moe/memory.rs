//! Memory of the kernels: objects in the heap, signals, and tables in device memory.

use super::args::{MoeArgs, MoeConfig};
use super::expected;
use super::plan::{ArrivalMethod, MoeProblem, RouterChoice, TALLIES, TokenType, Unit};
use crate::error::Failure;
use cuda_std::list::AppendList;
use cuda_std::memory::Word;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, DeviceError, MemoryLocation};
use ginlab::gin::{Plain, Signal, Sym, World};
use kernels::gin::{BY_SIGNAL, BY_SUM, BY_VALUE, Counts, Tally};
use kernels::moe::MoeKernelArgs;

/// Memory of the kernels of one rank.
pub struct MoeMemory {
    args: MoeArgs,
    pes: u32,
    staged: Sym<u32>,
    landing: Sym<u32>,
    slots: Sym<u32>,
    made: Sym<u32>,
    parts: Sym<u32>,
    answers: Sym<u32>,
    returned: Sym<u32>,
    values: Sym<u64>,
    signals: Signal,
    input: Buffer,
    choices: Buffer,
    planned: Buffer,
    output: Buffer,
    seen: Buffer,
    found: Buffer,
    numbers: Buffer,
    met: Buffer,
    times: Buffer,
}

/// Returns the bytes of the objects in the heap: messages to send, to forward, and received; the experts' results,
/// partial sums, their sums, answers.
pub(super) fn objects(problem: &MoeProblem, tuples: &[MoeConfig]) -> [u64; 7] {
    let has = |unit| tuples.iter().any(|tuple| tuple.unit == unit);
    let message = tuples.iter().map(|tuple| problem.message_bytes(tuple.kind)).max().unwrap_or(16);
    let (tokens, row) = (u64::from(problem.tokens), problem.answer_bytes());
    let by_sender = u64::from(problem.pes) * tokens;
    let received = by_sender * if has(Unit::Expert) { u64::from(problem.topk) } else { 1 };
    // These objects are used only with unit `node`.
    let landed = if has(Unit::Node) { by_sender } else { 0 };
    [
        tokens * message,
        landed * message,
        received * message,
        received * row,
        landed * u64::from(problem.local) * row,
        landed * row,
        2 * tokens * u64::from(problem.topk) * row,
    ]
}

/// Returns the bytes of heap that the parameter combinations need, including alignment.
pub fn heap_bytes(problem: &MoeProblem, tuples: &[MoeConfig]) -> u64 {
    objects(problem, tuples).iter().map(|bytes| bytes + 512).sum::<u64>() + u64::from(problem.pes) * 8 + (1 << 16)
}

impl MoeMemory {
    pub fn open(
        args: &MoeArgs,
        problem: &MoeProblem,
        tuples: &[MoeConfig],
        world: &mut World,
        ranks: &mut Bootstrap,
    ) -> Result<MoeMemory, Failure> {
        let mut heap = Vec::new();
        for bytes in objects(problem, tuples) {
            heap.push(world.alloc::<u32>(ranks, bytes / 4)?);
        }
        let values = world.alloc(ranks, problem.pes.into())?;
        let signals = world.signals(ranks, TALLIES * problem.pes)?;
        let device = world.device().clone();
        let (tokens, pes, variants) = (problem.tokens as usize, problem.pes as usize, args.check_rounds as usize);
        let topk = problem.topk as usize;
        let room = |bytes: usize| device.allocate(MemoryLocation::Device, bytes.max(8));
        let rounds = (args.warmup + args.iterations).max(args.check_rounds) as usize;
        Ok(MoeMemory {
            args: args.clone(),
            pes: problem.pes,
            staged: heap[0],
            landing: heap[1],
            slots: heap[2],
            made: heap[3],
            parts: heap[4],
            answers: heap[5],
            returned: heap[6],
            values,
            signals,
            input: given(&device, problem, world.my_pe(), args.check_rounds)?,
            choices: room(variants * tokens * topk * size_of::<[u32; 4]>())?,
            planned: room(variants * pes * 4)?,
            output: room(variants * tokens * problem.answer_bytes() as usize)?,
            seen: room(TALLIES as usize * pes * 8)?,
            found: room((2 + pes) * 8)?,
            numbers: room(2 * pes * tokens * topk * 4)?,
            met: room(8)?,
            times: room(rounds * 32)?,
        })
    }

    /// Writes the tables of a unit and a count method.
    pub fn load(
        &self,
        problem: &MoeProblem,
        (unit, count): (Unit, ArrivalMethod),
        me: u32,
        choices: &[Vec<Vec<RouterChoice>>],
    ) -> Result<(), Failure> {
        let of_variant = |variant: &Vec<Vec<RouterChoice>>| problem.tables(unit, way(count), me, &variant[me as usize]);
        let (tables, planned): (Vec<_>, Vec<_>) = choices.iter().map(of_variant).unzip();
        write(&self.choices, &tables.concat())?;
        Ok(write(&self.planned, &planned.concat())?)
    }

    /// Fills destinations with `with`, and the buffer of outgoing messages with zeros, because their headers contain
    /// padding that kernels do not write.
    pub fn poison(&self, world: &World, with: u8) -> Result<(), Failure> {
        let arriving = [self.landing, self.slots, self.parts, self.returned].map(|object| (object, with));
        for (object, with) in arriving.into_iter().chain([(self.staged, 0)]) {
            let step = vec![u32::from_ne_bytes([with; 4]); object.len().min(4 << 20) as usize];
            let mut at = 0;
            while at < object.len() {
                let length = (object.len() - at).min(step.len() as u64);
                world.write(object.slice(at, length), &step[..length as usize])?;
                at += length;
            }
        }
        Ok(self.output.write(0, &vec![with; self.output.bytes()])?)
    }

    /// Prepares memory for a launch.
    pub fn prepare(&self, world: &World) -> Result<(), Failure> {
        let mut seen = Vec::new();
        for number in 0..TALLIES * self.pes {
            seen.push(world.signal(self.signals.at(number))?);
        }
        self.seen.write(0, &seen)?;
        // A count carries three bits of its round. Clear counts of a previous parameter combination, which may have the
        // same bits.
        world.write(self.values, &vec![0u64; self.values.len() as usize])?;
        Ok(self.met.write(0, &[0u64])?)
    }

    /// Returns the arguments of a parameter combination, except its rounds.
    pub fn args(&self, problem: &MoeProblem, tuple: &MoeConfig) -> MoeKernelArgs {
        let (each, span, pes) = (problem.each(tuple.unit), problem.span(tuple.unit), self.pes as usize);
        let tally = |number: u32| Tally {
            signals: self.signals.at(number * self.pes),
            seen: self.seen.pointer::<Word>().wrapping_add(number as usize * pes),
        };
        let list = |number: usize| AppendList {
            count: self.found.pointer::<Word>().wrapping_add(number),
            numbers: self.numbers.pointer::<u32>().wrapping_add(number * pes * (problem.tokens * each) as usize),
        };
        let is_handed_on = span > 1;
        MoeKernelArgs {
            each,
            span,
            fp8: (tuple.kind == TokenType::Fp8).into(),
            tokens: problem.tokens,
            hidden: problem.hidden,
            topk: problem.topk,
            experts: problem.experts / problem.pes,
            message: problem.message_bytes(tuple.kind) as u32 / 4,
            batch: tuple.batch,
            rounds: 0,
            before: 0,
            variants: self.args.check_rounds,
            input: self.input.pointer(),
            choices: self.choices.pointer(),
            planned: self.planned.pointer(),
            output: self.output.pointer(),
            counts: Counts {
                way: way(tuple.count),
                most: problem.tokens * each,
                arrived: tally(0),
                signalled: tally(1),
                values: self.values,
            },
            answered: tally(2),
            found: self.found.pointer(),
            here: list(0),
            landed: list(is_handed_on.into()),
            met: self.met.pointer(),
            times: self.times.pointer(),
            staged: self.staged,
            landing: if is_handed_on { self.landing } else { self.slots },
            slots: self.slots,
            made: self.made,
            parts: self.parts,
            answers: if is_handed_on { self.answers } else { self.made },
            returned: self.returned,
        }
    }

    /// Returns the microseconds of dispatch and combine of the last launch's rounds.
    pub fn stamps(&self, rounds: u32) -> Result<Vec<[f64; 2]>, Failure> {
        let mut stamps = vec![[0u64; 4]; rounds as usize];
        self.times.read(0, &mut stamps)?;
        let since = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1000.0;
        Ok(stamps.iter().map(|[begin, here, made, end]| [since(*begin, *here), since(*made, *end)]).collect())
    }

    /// Returns the sums of all variants.
    pub fn outputs(&self) -> Result<Vec<u32>, Failure> {
        let mut words = vec![0u32; self.output.bytes() / 4];
        self.output.read(0, &mut words)?;
        Ok(words)
    }

    /// Returns the contents of positions of received messages.
    pub fn places(&self, world: &World, first: u32, count: u32, stride: usize) -> Result<Vec<u8>, Failure> {
        let (first, count, words) = (u64::from(first), u64::from(count), stride as u64 / 4);
        let words = world.read(self.slots.slice(first * words, count * words))?;
        Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
    }
}

/// Allocates and fills a buffer with a PE's tokens of all variants.
fn given(device: &Device, problem: &MoeProblem, me: u32, variants: u32) -> Result<Buffer, DeviceError> {
    let row = problem.answer_bytes() as usize;
    let buffer = device.allocate(MemoryLocation::Device, variants as usize * problem.tokens as usize * row)?;
    for variant in 0..variants {
        let tokens = (0..problem.tokens).flat_map(|token| expected::token(problem, me, variant, token));
        let words: Vec<u32> = tokens.collect();
        buffer.write(variant as usize * words.len() * 4, &words)?;
    }
    Ok(buffer)
}

pub(super) fn way(count: ArrivalMethod) -> u32 {
    match count {
        ArrivalMethod::Signal => BY_SIGNAL,
        ArrivalMethod::Word => BY_VALUE,
        ArrivalMethod::Immediate => BY_SUM,
    }
}

fn write<T: Plain>(buffer: &Buffer, values: &[T]) -> Result<(), DeviceError> {
    buffer.write(0, values)
}
