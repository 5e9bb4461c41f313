//! What the kernels work on: objects of the heap, signals, and tables in the device's memory.

use super::args::{Args, Tuple};
use super::expected;
use super::plan::{Problem, Type, Unit};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, DeviceError, Place};
use ginlab::gin::{Plain, Signal, Sym, World};
use kernels::moe::{Choice, KINDS, MoeArgs, Planned};

/// See the module.
pub struct Memory {
    args: Args,
    pes: u32,
    staged: Sym<u8>,
    relay: Sym<u8>,
    slots: Sym<u8>,
    returned: Sym<u8>,
    gathered: Sym<u8>,
    folded: Sym<u8>,
    answers: Sym<u8>,
    words: Sym<u64>,
    signals: Signal,
    input: Buffer,
    choices: Buffer,
    planned: Buffer,
    output: Buffer,
    seen: Buffer,
    taken: Buffer,
    list: Buffer,
    relayed: Buffer,
    met: Buffer,
    times: Buffer,
}

/// Objects of the heap: messages that are sent, handed on, received; answers that are made, gathered, folded, received.
fn objects(problem: &Problem, tuples: &[Tuple]) -> [u64; 7] {
    let has = |unit| tuples.iter().any(|tuple| tuple.unit == unit);
    let stride = tuples.iter().map(|tuple| problem.message_bytes(tuple.kind).next_multiple_of(16)).max().unwrap_or(16);
    let (tokens, answer) = (u64::from(problem.tokens), problem.answer_bytes());
    let received = u64::from(problem.pes) * tokens * if has(Unit::Expert) { u64::from(problem.topk) } else { 1 };
    // By node alone.
    let relayed = if has(Unit::Node) { u64::from(problem.nodes()) * tokens } else { 0 };
    [
        tokens * stride,
        relayed * stride,
        received * stride,
        received * answer,
        relayed * u64::from(problem.local) * answer,
        relayed * answer,
        2 * tokens * u64::from(problem.topk) * answer,
    ]
}

/// All that tuples need of the heap, with places to begin on.
pub fn heap_bytes(problem: &Problem, tuples: &[Tuple]) -> u64 {
    objects(problem, tuples).iter().map(|bytes| bytes + 512).sum::<u64>() + u64::from(problem.pes) * 8 + (1 << 16)
}

impl Memory {
    pub fn open(
        args: &Args,
        problem: &Problem,
        tuples: &[Tuple],
        world: &mut World,
        ranks: &mut Bootstrap,
    ) -> Result<Memory, Failure> {
        let mut heap = Vec::new();
        for bytes in objects(problem, tuples) {
            heap.push(world.alloc::<u8>(ranks, bytes)?);
        }
        let words = world.alloc(ranks, problem.pes.into())?;
        let signals = world.signals(ranks, KINDS * problem.pes)?;
        let device = world.device().clone();
        let (tokens, pes, variants) = (problem.tokens as usize, problem.pes as usize, args.check_rounds as usize);
        let row = problem.answer_bytes() as usize;
        let room = |bytes: usize| device.allocate(Place::Device, bytes.max(8));
        let rounds = (args.warmup + args.iterations).max(args.check_rounds) as usize;
        Ok(Memory {
            args: args.clone(),
            pes: problem.pes,
            staged: heap[0],
            relay: heap[1],
            slots: heap[2],
            returned: heap[3],
            gathered: heap[4],
            folded: heap[5],
            answers: heap[6],
            words,
            signals,
            input: given(&device, problem, world.my_pe(), args.check_rounds)?,
            choices: room(variants * tokens * problem.topk as usize * size_of::<Choice>())?,
            planned: room(variants * pes * size_of::<Planned>())?,
            output: room(variants * tokens * row)?,
            seen: room(2 * KINDS as usize * pes * 8)?,
            taken: room(2 * (pes + 2) * 8)?,
            list: room(pes * tokens * problem.topk as usize * 4)?,
            relayed: room(pes * tokens * 4)?,
            met: room(8)?,
            times: room(rounds * 32)?,
        })
    }

    /// The tables of a unit.
    pub fn load(&self, problem: &Problem, unit: Unit, me: u32, choices: &[Vec<Vec<Choice>>]) -> Result<(), Failure> {
        let mine = |variant: &Vec<Vec<Choice>>| variant[me as usize].clone();
        write(&self.choices, &choices.iter().flat_map(mine).collect::<Vec<Choice>>())?;
        let planned = |variant: &Vec<Vec<Choice>>| problem.planned(&problem.messages(unit, me, &variant[me as usize]));
        Ok(write(&self.planned, &choices.iter().flat_map(planned).collect::<Vec<Planned>>())?)
    }

    /// What lies where bytes are to arrive; and zeros where messages are made, since their headers have bytes that nobody writes.
    pub fn poison(&self, world: &World, with: u8) -> Result<(), Failure> {
        let arriving = [self.relay, self.slots, self.gathered, self.answers].map(|object| (object, with));
        for (object, with) in arriving.into_iter().chain([(self.staged, 0)]) {
            let step = vec![with; object.len().min(16 << 20) as usize];
            let mut at = 0;
            while at < object.len() {
                let length = (object.len() - at).min(step.len() as u64);
                world.write(object.slice(at, length), &step[..length as usize])?;
                at += length;
            }
        }
        Ok(self.output.write(0, &vec![with; self.output.bytes()])?)
    }

    /// Before a launch behind so many rounds.
    pub fn prepare(&self, world: &World, rounds: u32) -> Result<(), Failure> {
        let all = KINDS * self.pes;
        let mut seen = vec![0u64; 2 * all as usize];
        for number in 0..all {
            let at = (rounds + 1) % 2 * all + number;
            seen[at as usize] = world.signal(self.signals.at(number))?;
        }
        self.seen.write(0, &seen)?;
        self.taken.write(0, &vec![0u64; self.taken.bytes() / 8])?;
        // Rounds are told apart by three bits: a count that another tuple has left may have this one's.
        world.write(self.words, &vec![0u64; self.words.len() as usize])?;
        Ok(self.met.write(0, &[0u64])?)
    }

    /// Arguments, but for what a tuple says.
    pub fn args(&self, problem: &Problem) -> MoeArgs {
        MoeArgs {
            unit: 0,
            count: 0,
            fp8: 0,
            tokens: problem.tokens,
            hidden: problem.hidden,
            topk: problem.topk,
            experts: problem.experts / problem.pes,
            local: problem.local,
            batch: 1,
            rounds: 0,
            before: 0,
            variants: self.args.check_rounds,
            stride: 0,
            input: self.input.pointer(),
            choices: self.choices.pointer(),
            planned: self.planned.pointer(),
            output: self.output.pointer(),
            seen: self.seen.pointer(),
            taken: self.taken.pointer(),
            list: self.list.pointer(),
            relayed: self.relayed.pointer(),
            met: self.met.pointer(),
            times: self.times.pointer(),
            staged: self.staged,
            relay: self.relay,
            slots: self.slots,
            returned: self.returned,
            gathered: self.gathered,
            folded: self.folded,
            answers: self.answers,
            words: self.words,
            signals: self.signals,
        }
    }

    pub fn stride(&self, problem: &Problem, kind: Type) -> u64 {
        problem.message_bytes(kind).next_multiple_of(16)
    }

    /// Microseconds of dispatch and combine of the last launch's rounds.
    pub fn stamps(&self, rounds: u32) -> Result<Vec<[f64; 2]>, Failure> {
        let mut stamps = vec![[0u64; 4]; rounds as usize];
        self.times.read(0, &mut stamps)?;
        let since = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1000.0;
        Ok(stamps.iter().map(|[begin, here, made, end]| [since(*begin, *here), since(*made, *end)]).collect())
    }

    /// The sums of all variants.
    pub fn outputs(&self) -> Result<Vec<u32>, Failure> {
        let mut words = vec![0u32; self.output.bytes() / 4];
        self.output.read(0, &mut words)?;
        Ok(words)
    }

    /// Places of messages that have arrived here.
    pub fn places(&self, world: &World, first: u32, count: u32, stride: usize) -> Result<Vec<u8>, Failure> {
        let (first, count, stride) = (u64::from(first), u64::from(count), stride as u64);
        Ok(world.read(self.slots.slice(first * stride, count * stride))?)
    }
}

/// A PE's tokens, of all variants.
fn given(device: &Device, problem: &Problem, me: u32, variants: u32) -> Result<Buffer, DeviceError> {
    let row = problem.answer_bytes() as usize;
    let buffer = device.allocate(Place::Device, variants as usize * problem.tokens as usize * row)?;
    for variant in 0..variants {
        let tokens = (0..problem.tokens).flat_map(|token| expected::token(problem, me, variant, token));
        let words: Vec<u32> = tokens.collect();
        buffer.write(variant as usize * words.len() * 4, &words)?;
    }
    Ok(buffer)
}

fn write<T: Plain>(buffer: &Buffer, values: &[T]) -> Result<(), DeviceError> {
    buffer.write(0, values)
}
