//! Verification of a parameter combination. In a separate pass before the timed ones, each iteration has its own slots
//! and its own payload.
//!
//! A put that is lost, short or misplaced leaves a wrong slot, regardless of how many others arrive. Calls that move no
//! bytes are verified by their effect: the sum of signals or atomics. A barrier has no such effect, so its row has no
//! verdict.

use super::args::{ShmemCase, ShmemConfig};
use super::data;
use super::measure::{Part, Shmem};
use crate::error::Failure;
use crate::world::CallScope;
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::Signal;
use ginlab::measure::pattern;
use std::time::Instant;

/// Difference between an expected byte and the byte that its destination holds before the pass.
const POISON: u8 = 0xA5;
/// Size in bytes of an L1 line, and a size that exceeds L1 (256 KiB).
const LINE: u64 = 128;
const BEYOND_L1: u64 = 1 << 20;
/// Maximum bytes of all slots of a verified pass, unless one slot is longer.
const SLOTS_BYTES: u64 = 1 << 20;
/// Maximum iterations of a verified pass, which is enough to check a thousand small calls.
const MOST_TURNS: u32 = 1024;

/// Slots of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSlots {
    /// Number of slots, a power of two.
    pub places: u32,
    /// Distance in bytes between slots of the source.
    pub step: u64,
    /// Distance in bytes between slots of the destination. 0 if all iterations use one.
    pub to_step: u64,
}

impl LaunchSlots {
    /// Returns the slots of a timed launch. Gets read from several: a get of one slot would load from L1, which is not
    /// invalidated between iterations.
    pub fn timed(tuple: &ShmemConfig, pes: u64) -> LaunchSlots {
        let step = step(tuple, pes);
        let places = if tuple.case == ShmemCase::GetLatency { (BEYOND_L1 / step).max(1) } else { 1 };
        LaunchSlots { places: 1 << places.ilog2(), step, to_step: 0 }
    }

    /// Returns the slots of the verified pass, one per iteration.
    pub fn verified(tuple: &ShmemConfig, pes: u64) -> LaunchSlots {
        let step = step(tuple, pes);
        LaunchSlots { places: most_turns(tuple, pes).next_power_of_two(), step, to_step: step }
    }

    /// Returns the bytes from the first slot to the end of the last one.
    fn span(self, step: u64, payload: u64) -> u64 {
        u64::from(self.places - 1) * step + payload
    }
}

/// Returns the distance in bytes between slots.
fn step(tuple: &ShmemConfig, pes: u64) -> u64 {
    payload(tuple, pes).next_multiple_of(LINE).max(LINE)
}

/// Returns the bytes of one iteration. For an exchange, returns the sum over all PEs.
pub fn payload(tuple: &ShmemConfig, pes: u64) -> u64 {
    match tuple.case {
        ShmemCase::AllToAll => tuple.bytes * pes,
        ShmemCase::DataOrder => data::payload(pes),
        _ => tuple.bytes,
    }
}

/// Returns the maximum number of iterations of the verified pass, for any grid. It is limited by the number of timed
/// iterations and by the number of slots.
fn most_turns(tuple: &ShmemConfig, pes: u64) -> u32 {
    if tuple.case.only_checks() {
        return 1;
    }
    let fit = (SLOTS_BYTES / step(tuple, pes)).clamp(1, MOST_TURNS.into()) as u32;
    tuple.iterations.min(1 << fit.ilog2())
}

/// Returns the iterations of the verified pass, each of which has calls of the whole grid.
fn turns(tuple: &ShmemConfig, pes: u64) -> u32 {
    let calls = callers(tuple).clamp(1, u64::from(MOST_TURNS) / 2) as u32;
    most_turns(tuple, pes).min(MOST_TURNS / calls)
}

/// Returns the number of calls in one iteration of a grid, each for its own part of the bytes.
pub fn callers(tuple: &ShmemConfig) -> u64 {
    let of_block = match tuple.scope {
        _ if !tuple.case.is_bandwidth() => return 1,
        CallScope::Thread => tuple.block,
        CallScope::Warp => tuple.block.div_ceil(32),
        CallScope::Block => 1,
    };
    u64::from(tuple.grid) * u64::from(of_block)
}

/// Returns the number of words for values, one per iteration of a verified pass.
pub fn words(tuples: &[ShmemConfig]) -> u64 {
    let needs = |tuple: &ShmemConfig| matches!(tuple.case, ShmemCase::PLatency | ShmemCase::PutLatencyLoaded);
    if tuples.iter().any(needs) { MOST_TURNS.into() } else { 1 }
}

/// Returns the longest source and destination of all parameter combinations.
pub fn longest(tuples: &[ShmemConfig], pes: u64) -> [u64; 2] {
    let (mut source, mut target) = (8, 8);
    for tuple in tuples {
        let payload = payload(tuple, pes);
        let (timed, verified) = (LaunchSlots::timed(tuple, pes), LaunchSlots::verified(tuple, pes));
        for slots in [timed, verified] {
            source = source.max(slots.span(slots.step, payload) + u64::from(tuple.from_at));
            target = target.max(slots.span(slots.to_step, payload) + u64::from(tuple.to_at));
        }
    }
    [source, target]
}

/// Counters before the pass, which its calls raise.
struct Before {
    signal: u64,
    word: u64,
}

impl Shmem {
    /// Runs the verified pass. Returns the number of wrong bytes on this PE, of which each missing or additional signal
    /// or atomic counts as 8. `None` if nothing was compared here.
    pub(super) fn verify(
        &mut self,
        tuple: &ShmemConfig,
        part: Part,
        ranks: &mut Bootstrap,
    ) -> Result<Option<u64>, Failure> {
        let pes = u64::from(self.world.n_pes());
        let pass = ShmemConfig { warmup: 0, iterations: turns(tuple, pes), ..*tuple };
        let slots = LaunchSlots::verified(tuple, pes);
        self.prepare(&pass, part, slots)?;
        let before =
            Before { signal: self.world.signal(self.signal)?, word: self.world.read(self.word.slice(0, 1))?[0] };
        self.world.barrier(ranks)?;
        if part.takes_part {
            self.launch(&pass, part.peer, before.signal, slots, ranks)?;
        }
        self.advance(&pass);
        // Data that a kernel has waited for has arrived when the kernel ends. Puts of other PEs are complete when their
        // kernels have ended.
        let early = if part.waits { self.wrong(&pass, part, slots, &before)? } else { None };
        self.world.barrier(ranks)?;
        let wrong = if part.waits { early } else { self.wrong(&pass, part, slots, &before)? };
        // All PEs must compare before any PE writes again.
        self.world.barrier(ranks)?;
        Ok(wrong)
    }

    /// Writes the payload of each iteration to its slot, and poisons the destination.
    fn prepare(&mut self, pass: &ShmemConfig, part: Part, slots: LaunchSlots) -> Result<(), Failure> {
        let me = self.world.my_pe();
        if pass.case == ShmemCase::PLatency || pass.case == ShmemCase::PutLatencyLoaded {
            let words =
                (0..pass.iterations).map(|turn| self.word_of(pass, if part.begins { me } else { part.peer }, turn));
            let words: Vec<u64> = if part.begins { words.collect() } else { words.map(|word| !word).collect() };
            self.world.write(self.word.slice(0, words.len() as u64), &words)?;
        }
        let pes = u64::from(self.world.n_pes());
        let length = payload(pass, pes) as usize;
        if !moves_slots(pass.case) {
            return Ok(());
        }
        let mut source = vec![POISON; slots.span(slots.step, length as u64) as usize];
        for slot in 0..slots.places {
            let at = slot as usize * slots.step as usize;
            self.fill(pass, slot, &mut source[at..][..length]);
        }
        self.world.write(self.from.slice(pass.from_at.into(), source.len() as u64), &source)?;
        if self.receives(pass.case, part) {
            let mut poison = vec![POISON; slots.span(slots.to_step, length as u64) as usize];
            for slot in 0..slots.places {
                let at = slot as usize * slots.to_step as usize;
                let bytes = &mut poison[at..][..length];
                self.expect(pass, part, slot, bytes);
                bytes.iter_mut().for_each(|byte| *byte ^= POISON);
            }
            self.world.write(self.to.slice(pass.to_at.into(), poison.len() as u64), &poison)?;
        }
        Ok(())
    }

    /// Fills the source of an iteration. For an exchange, the source has a block for each PE.
    fn fill(&self, pass: &ShmemConfig, slot: u32, bytes: &mut [u8]) {
        let blocks = if pass.case == ShmemCase::AllToAll { self.world.n_pes() } else { 1 };
        for (block, bytes) in (0..).zip(bytes.chunks_mut((pass.bytes as usize).max(1))) {
            pattern::fill(bytes, pattern::seed(self.world.my_pe(), self.number, slot * blocks + block));
        }
    }

    /// Fills `bytes` with the expected destination of an iteration.
    fn expect(&self, pass: &ShmemConfig, part: Part, slot: u32, bytes: &mut [u8]) {
        if pass.case != ShmemCase::AllToAll {
            return pattern::fill(bytes, pattern::seed(part.peer, self.number, slot));
        }
        let mine = slot * self.world.n_pes() + self.world.my_pe();
        for (pe, bytes) in (0..).zip(bytes.chunks_mut((pass.bytes as usize).max(1))) {
            pattern::fill(bytes, pattern::seed(pe, self.number, mine));
        }
    }

    /// Returns the word that PE `from` sends in an iteration.
    fn word_of(&self, pass: &ShmemConfig, from: u32, turn: u32) -> u64 {
        // The kernel of `p` sends the number of the iteration.
        if pass.case == ShmemCase::PLatency {
            turn.into()
        } else {
            pattern::word(pattern::seed(from, self.number, turn), 1)
        }
    }

    /// Returns whether this PE's destination is written.
    fn receives(&self, case: ShmemCase, part: Part) -> bool {
        match case {
            ShmemCase::AllToAll => true,
            ShmemCase::PutSignalPingPong | ShmemCase::PutSignalSetPingPong | ShmemCase::MessagePingPong => part.pairs,
            ShmemCase::PutLatency
            | ShmemCase::PutLatencyLoaded
            | ShmemCase::PutBandwidth
            | ShmemCase::PutSignalBandwidth => part.pairs && !part.begins,
            ShmemCase::GetLatency | ShmemCase::GetBandwidth => part.pairs && part.begins,
            _ => false,
        }
    }

    fn wrong(
        &self,
        pass: &ShmemConfig,
        part: Part,
        slots: LaunchSlots,
        before: &Before,
    ) -> Result<Option<u64>, Failure> {
        let turns = u64::from(pass.iterations);
        let answers = part.pairs && !part.begins;
        // A missing or additional increment counts as a wrong word.
        let missing = |found: u64, wanted: u64| Some(8 * found.abs_diff(wanted));
        Ok(match pass.case {
            ShmemCase::PLatency if answers => Some(self.wrong_words(pass, part)?),
            ShmemCase::AtomicLatency if answers => {
                missing(self.world.read(self.word.slice(0, 1))?[0], before.word.wrapping_add(turns))
            }
            ShmemCase::SignalPingPong | ShmemCase::SignalSetPingPong if part.pairs => {
                missing(self.settled(self.signal, before.signal + turns)?, before.signal + turns)
            }
            ShmemCase::PutSignalBandwidth if answers => {
                // Includes signals of earlier launches, which no kernel has waited for.
                let signals = self.settled(self.signal.at(1), self.streamed)?.abs_diff(self.streamed);
                Some(8 * signals + self.wrong_bytes(pass, part, slots)?)
            }
            ShmemCase::PutLatencyLoaded if answers => {
                Some(self.wrong_words(pass, part)? + self.wrong_bytes(pass, part, slots)?)
            }
            case if self.receives(case, part) && pass.bytes > 0 => Some(self.wrong_bytes(pass, part, slots)?),
            _ => None,
        })
    }

    /// Returns the sum of a signal once it is `wanted` or the timeout has passed: the last increment may arrive after
    /// its sender's `quiet`.
    fn settled(&self, signal: Signal, wanted: u64) -> Result<u64, Failure> {
        let began = Instant::now();
        let mut sum = self.world.signal(signal)?;
        while sum < wanted && began.elapsed() < self.args.world.meet.timeout {
            std::thread::yield_now();
            sum = self.world.signal(signal)?;
        }
        Ok(sum)
    }

    fn wrong_words(&self, pass: &ShmemConfig, part: Part) -> Result<u64, Failure> {
        let found = self.world.read(self.word.slice(0, pass.iterations.into()))?;
        let bytes = |(turn, word): (u32, &u64)| {
            let differ = (word ^ self.word_of(pass, part.peer, turn)).to_ne_bytes();
            differ.iter().filter(|byte| **byte != 0).count() as u64
        };
        Ok((0..).zip(&found).map(bytes).sum())
    }

    fn wrong_bytes(&self, pass: &ShmemConfig, part: Part, slots: LaunchSlots) -> Result<u64, Failure> {
        let pes = u64::from(self.world.n_pes());
        let length = payload(pass, pes) as usize;
        let found = self.world.read(self.to.slice(pass.to_at.into(), slots.span(slots.to_step, length as u64)))?;
        let mut expected = vec![0u8; length];
        let (mut wrong, mut unwritten) = (0, 0);
        // The load ends with the measured puts. Slots after its last put still contain poison.
        let is_load = pass.case == ShmemCase::PutLatencyLoaded;
        let compared = if is_load { slots.places } else { pass.iterations };
        for slot in 0..compared {
            self.expect(pass, part, slot, &mut expected);
            let (found, gap) = found[slot as usize * slots.to_step as usize..].split_at(length);
            // Bytes between two slots must not change.
            let gap = &gap[..(slots.to_step as usize - length).min(gap.len())];
            wrong += gap.iter().filter(|byte| **byte != POISON).count() as u64;
            let differ = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count() as u64;
            let is_unwritten = found.iter().zip(&expected).all(|(found, expected)| *found == expected ^ POISON);
            if is_load && slot > 0 && is_unwritten {
                unwritten += differ;
            } else {
                wrong += differ + std::mem::take(&mut unwritten);
            }
        }
        Ok(wrong)
    }
}

/// Returns whether the iterations of a case move bytes between slots.
fn moves_slots(case: ShmemCase) -> bool {
    !matches!(
        case,
        ShmemCase::PLatency
            | ShmemCase::AtomicLatency
            | ShmemCase::SignalPingPong
            | ShmemCase::SignalSetPingPong
            | ShmemCase::BarrierAll
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuple(case: ShmemCase, bytes: u64, iterations: u32) -> ShmemConfig {
        ShmemConfig {
            case,
            scope: CallScope::Block,
            bytes,
            grid: 1,
            block: 32,
            warmup: 1,
            iterations,
            by_messages: false,
            to_at: 0,
            from_at: 0,
        }
    }

    proptest! {
        #[test]
        fn timed_gets_exceed_l1_cache(bytes in 0u64..3 << 20) {
            let get = tuple(ShmemCase::GetLatency, bytes, 1);
            let LaunchSlots { places, step, to_step } = LaunchSlots::timed(&get, 2);
            prop_assert!(places.is_power_of_two() && to_step == 0);
            prop_assert!(step >= bytes && step.is_multiple_of(LINE));
            prop_assert!(u64::from(places) * step >= BEYOND_L1 / 2);
            let [source, target] = longest(&[get], 2);
            prop_assert!(source >= u64::from(places - 1) * step + bytes && target >= bytes);
            prop_assert_eq!(LaunchSlots::timed(&tuple(ShmemCase::PutLatency, bytes, 1), 2).places, 1);
        }

        /// Each iteration of a verified pass has a slot, which is within the memory and overlaps no other slot.
        #[test]
        fn verified_iterations_use_separate_slots(bytes in 0u64..9 << 20, iterations in 1u32..5000, pes in 2u64..9, all: bool) {
            let tuple = tuple(if all { ShmemCase::AllToAll } else { ShmemCase::PutLatency }, bytes, iterations);
            let (turns, slots) = (turns(&tuple, pes), LaunchSlots::verified(&tuple, pes));
            prop_assert!((1..=iterations.min(MOST_TURNS)).contains(&turns) && turns <= slots.places);
            let payload = payload(&tuple, pes);
            prop_assert!(slots.to_step >= payload && slots.step == slots.to_step);
            let [source, target] = longest(&[tuple], pes);
            prop_assert!(source.min(target) >= u64::from(slots.places - 1) * slots.step + payload);
            prop_assert!(payload > 1024 || turns == iterations.min(MOST_TURNS));
        }
    }
}
