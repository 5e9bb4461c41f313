//! Exhibit: a signal is written to a word after the program has reset the word.

use super::InOrder;
use crate::museum::port::{Port, PortWrite, RuleResult};
use std::collections::VecDeque;

/// Number of rounds, each with four operations of PE 0.
const ROUNDS: u32 = 8;
/// Number of words of the put of a round.
const WORDS: u64 = 8;
/// First word of the puts.
const BLOCKS: u64 = 8;
/// The signal word in memory that the program may reset.
const WORD: u64 = 0;
/// Number of polls between reading `WORD` for a signal and writing the new value: copies from and to GPU memory.
const COPIES: u32 = 6;

/// Operations of a round. Immediates number them consecutively across rounds.
const SIGNAL: u32 = 0;
const BARRIER: u32 = 1;
const PUT: u32 = 2;
const SECOND_SIGNAL: u32 = 3;

fn block(round: u32) -> u64 {
    BLOCKS + u64::from(round) * WORDS
}

/// PE 0 raises the word and enters a barrier. After the barrier, PE 1 resets the word. PE 1 then waits for the word
/// before it reads the next put.
pub fn reset_word(port: &Port, fixed: bool) -> RuleResult {
    if port.me() == 1 { target(port, fixed) } else { sender(port) }
}

fn sender(port: &Port) -> RuleResult {
    let mut answers = 0;
    let mut answered = |expected: u32| {
        port.until(
            |events| {
                answers += events.immediates.len() as u32;
                Ok(answers == expected)
            },
            || "PE 0 waits for an answer".into(),
        )
    };
    for round in 0..ROUNDS {
        let send = |operation: u32, write: PortWrite| {
            port.write(PortWrite { immediate: Some(4 * round + operation), ..write })
        };
        send(SIGNAL, PortWrite::default())?;
        send(BARRIER, PortWrite::default())?;
        answered(2 * round + 1)?;
        (0..WORDS).for_each(|word| port.set_word(block(round) + word, u64::from(round) + 1));
        send(PUT, PortWrite { from: block(round), to: block(round), words: WORDS, ..PortWrite::default() })?;
        send(SECOND_SIGNAL, PortWrite::default())?;
        answered(2 * round + 2)?;
    }
    Ok(())
}

/// The target's side of the library: the value of a signal in memory is read first and written later, while the library
/// itself owns the count of barriers, which is visible immediately.
#[derive(Default)]
struct Target {
    order: InOrder,
    /// Values to write to the word, each with the number of polls until then.
    copies: VecDeque<(u32, u64)>,
    barriers: u32,
}

impl Target {
    /// Applies an operation that has arrived.
    fn apply(&mut self, port: &Port, operation: u32) {
        match operation % 4 {
            SIGNAL | SECOND_SIGNAL => self.copies.push_back((COPIES, port.word(WORD) + 1)),
            BARRIER => self.barriers += 1,
            _ => {}
        }
    }

    fn step(&mut self, port: &Port, immediates: Vec<u32>, fixed: bool) {
        self.copies.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        while let Some((0, value)) = self.copies.front() {
            port.set_word(WORD, *value);
            self.copies.pop_front();
        }
        if !fixed {
            // Each kind of signal takes a different path, and one on the shorter path can overtake the other.
            immediates.into_iter().for_each(|operation| self.apply(port, operation));
            return;
        }
        immediates.into_iter().for_each(|operation| self.order.arrive(operation));
        // Applies the operations in order, each after all preceding ones have been written.
        while self.copies.is_empty()
            && let Some(operation) = self.order.next()
        {
            self.apply(port, operation);
        }
    }
}

fn target(port: &Port, fixed: bool) -> RuleResult {
    let mut library = Target::default();
    let mut wait = |enough: &dyn Fn(&Target) -> bool, what: &str| {
        port.until(
            |events| {
                library.step(port, events.immediates, fixed);
                Ok(enough(&library))
            },
            || format!("PE 1 waits for {what}"),
        )
    };
    for round in 0..ROUNDS {
        wait(&|library| library.barriers > round, "the barrier")?;
        // All signals that precede the barrier have been applied, so the word can be used for the next phase.
        port.set_word(WORD, 0);
        port.write(PortWrite { immediate: Some(0), ..PortWrite::default() })?;
        wait(&|_| port.word(WORD) > 0, "the signal of the put")?;
        let word = (0..WORDS).map(|word| port.word(block(round) + word)).find(|word| *word != u64::from(round) + 1);
        if let Some(word) = word {
            return Err(format!(
                "PE 1, round {round}: the word that was reset is {} again, and a word of the put that it announces is \
                 {word:#018x}",
                port.word(WORD)
            ));
        }
        port.set_word(WORD, 0);
        port.write(PortWrite { immediate: Some(0), ..PortWrite::default() })?;
    }
    Ok(())
}
