//! Exhibit: a weak signal becomes visible before its put.

use super::InOrder;
use crate::museum::port::{Port, PortWrite, RuleResult};

/// Number of puts, each with a signal.
const ROUNDS: u32 = 16;
/// Number of words of a put.
const WORDS: u64 = 8;

/// NCCL splits a put with a signal in memory into two operations: a put without a signal, and a signal without bytes.
/// The operations of a context are numbered: round `r` has operations `2 r` and `2 r + 1`.
pub fn weak_signal(port: &Port, fixed: bool) -> RuleResult {
    let block = |round: u32| u64::from(round) * WORDS;
    if port.me() == 0 {
        for round in 0..ROUNDS {
            (0..WORDS).for_each(|word| port.set_word(block(round) + word, u64::from(round) + 1));
            let (put, signal) = (2 * round, 2 * round + 1);
            let bytes = PortWrite { from: block(round), to: block(round), words: WORDS, ..PortWrite::default() };
            port.write(PortWrite { immediate: Some(put), ..bytes })?;
            port.write(PortWrite { immediate: Some(signal), ..PortWrite::default() })?;
        }
        return port.until(|events| Ok(events.immediates.contains(&0)), || "PE 0 waits for the answer".into());
    }
    let (mut order, mut seen) = (InOrder::default(), 0);
    // The program on PE 1 reads the block of a round as soon as the round's signal is visible.
    let mut signalled = |operation: u32| {
        let round = operation / 2;
        seen += 1;
        let word = (0..WORDS).map(|word| port.word(block(round) + word)).find(|word| *word != u64::from(round) + 1);
        match word {
            Some(word) => Err(format!("PE 1, round {round}: signalled, and a word of its put is {word:#018x}")),
            None => Ok(seen == ROUNDS),
        }
    };
    let is_signal = |operation: &u32| operation % 2 == 1;
    port.until(
        |events| {
            let mut all = false;
            for operation in events.immediates {
                if fixed {
                    // A signal becomes visible after all earlier operations of its context.
                    order.arrive(operation);
                    while let Some(operation) = order.next() {
                        all |= is_signal(&operation) && signalled(operation)?;
                    }
                } else if is_signal(&operation) {
                    // A weak signal guarantees nothing about other operations, so it is applied without waiting for
                    // them.
                    all |= signalled(operation)?;
                }
            }
            Ok(all)
        },
        || "PE 1 waits for signals".into(),
    )?;
    port.write(PortWrite { immediate: Some(0), ..PortWrite::default() })
}
