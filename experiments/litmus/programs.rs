//! The litmus programs. Each returns an error if its weak outcome occurs. `waits` selects the variant with the wait
//! that excludes it.
//!
//! Words start at 0. `X`, `Y` and `BYTES` are in the memory of the PE that reads them.

use crate::museum::port::{Port, PortWrite, RuleResult};

const X: u64 = 0;
const Y: u64 = 1;
/// Indices of two source words, whose values are 1 and 2.
const ONE: u64 = 8;
const TWO: u64 = 9;
/// First word of a longer object, and its length.
const BYTES: u64 = 64;
const LENGTH: u64 = 64;
/// Base values of immediates, for signals and for a PE's result. 0 or 1 is added to them.
const SIGNAL: u32 = 1;
const DONE: u32 = 2;
const RESULT: u32 = 4;

/// A write of the value 1 to a word.
fn one(to: u64, token: u64) -> PortWrite {
    PortWrite { from: ONE, to, words: 1, token, ..PortWrite::default() }
}

/// A signal without bytes.
fn signal(immediate: u32) -> PortWrite {
    PortWrite { immediate: Some(immediate), token: 100, ..PortWrite::default() }
}

/// Waits for the completion of a write.
fn completion(port: &Port, token: u64) -> RuleResult {
    port.until(|events| Ok(events.done.contains(&token)), || "a PE waits for a completion".into())
}

/// Waits until a word of this PE is 1.
fn word(port: &Port, index: u64) -> RuleResult {
    port.until(|_| Ok(port.word(index) == 1), || "a PE waits for a word".into())
}

/// Waits for an immediate.
fn notice(port: &Port, immediate: u32) -> RuleResult {
    port.until(|events| Ok(events.immediates.contains(&immediate)), || "a PE waits for an immediate".into())
}

/// PE 0 writes X, then Y. PE 1 observes Y and then reads X.
pub fn message_passing(port: &Port, waits: bool) -> RuleResult {
    if port.me() == 1 {
        word(port, Y)?;
        return if port.word(X) == 1 { Ok(()) } else { Err("Y = 1, X = 0".into()) };
    }
    port.set_word(ONE, 1);
    port.write(one(X, 1))?;
    if waits {
        completion(port, 1)?;
    }
    port.write(one(Y, 2))
}

/// PE 0 writes bytes and sends a signal: separately, or as the immediate of the write.
pub fn signal_after_bytes(port: &Port, waits: bool) -> RuleResult {
    let bytes = PortWrite { from: BYTES, to: BYTES, words: LENGTH, token: 1, ..PortWrite::default() };
    if port.me() == 0 {
        (BYTES..BYTES + LENGTH).for_each(|at| port.set_word(at, 1));
        if waits {
            return port.write(PortWrite { immediate: Some(SIGNAL), ..bytes });
        }
        port.write(bytes)?;
        return port.write(signal(SIGNAL));
    }
    notice(port, SIGNAL)?;
    complete(port, "signalled")
}

/// PE 0 writes bytes. PE 1 sees the last word, or the immediate, and reads the others.
pub fn bytes_of_one_write(port: &Port, waits: bool) -> RuleResult {
    if port.me() == 0 {
        (BYTES..BYTES + LENGTH).for_each(|at| port.set_word(at, 1));
        let bytes = PortWrite { from: BYTES, to: BYTES, words: LENGTH, token: 1, ..PortWrite::default() };
        return port.write(PortWrite { immediate: Some(SIGNAL), ..bytes });
    }
    if waits {
        notice(port, SIGNAL)?
    } else {
        word(port, BYTES + LENGTH - 1)?
    }
    complete(port, "last word = 1")
}

/// Checks that all bytes have arrived.
fn complete(port: &Port, after: &str) -> RuleResult {
    let missing = (BYTES..BYTES + LENGTH).filter(|at| port.word(*at) != 1).count();
    if missing == 0 { Ok(()) } else { Err(format!("{after}, {missing} of {LENGTH} words are old")) }
}

/// PE 0 writes 1, then 2, to the same word.
pub fn same_word(port: &Port, waits: bool) -> RuleResult {
    if port.me() == 1 {
        notice(port, DONE)?;
        return if port.word(X) == 2 { Ok(()) } else { Err(format!("X = {} in the end", port.word(X))) };
    }
    port.set_word(ONE, 1);
    port.set_word(TWO, 2);
    port.write(one(X, 1))?;
    if waits {
        completion(port, 1)?;
    }
    port.write(PortWrite { from: TWO, ..one(X, 2) })?;
    let mut left = if waits { 1 } else { 2 };
    port.until(
        |events| {
            left -= events.done.len();
            Ok(left == 0)
        },
        || "PE 0 waits for completions".into(),
    )?;
    port.write(signal(DONE))
}

/// Each PE writes to the other one, then reads its own word. Both can read 0.
pub fn store_buffering(port: &Port, waits: bool) -> RuleResult {
    port.set_word(ONE, 1);
    port.write(one(X, 1))?;
    let (mut complete, mut other) = (!waits, None);
    // The result of PE 0 may arrive before the completion.
    let mut until = |completes: bool| {
        port.until(
            |events| {
                complete |= events.done.contains(&1);
                other = other.or(events.immediates.iter().find(|immediate| **immediate >= RESULT).copied());
                Ok(if completes { complete } else { other.is_some() })
            },
            || "a PE waits for its completion or for the result of PE 0".into(),
        )
    };
    if waits {
        until(true)?;
    }
    let mine = port.word(X) as u32;
    if port.me() == 0 {
        return port.write(signal(RESULT + mine));
    }
    until(false)?;
    if mine == 0 && other == Some(RESULT) { Err("both PEs read 0".into()) } else { Ok(()) }
}

/// PE 0 writes with an immediate, waits for the completion, and sends another immediate. PE 1 sees the second one.
pub fn completion_before_notice(port: &Port, waits: bool) -> RuleResult {
    if port.me() == 0 {
        port.set_word(ONE, 1);
        port.write(PortWrite { immediate: Some(SIGNAL), ..one(X, 1) })?;
        completion(port, 1)?;
        return port.write(signal(DONE));
    }
    let (mut first, mut second) = (false, false);
    port.until(
        |events| {
            first |= events.immediates.contains(&SIGNAL);
            second |= events.immediates.contains(&DONE);
            Ok(second && (first || !waits))
        },
        || "PE 1 waits for immediates".into(),
    )?;
    if first { Ok(()) } else { Err("the second immediate, not the first".into()) }
}

/// PE 0 writes to PE 2 and signals PE 1. PE 1 then signals PE 2, which reads.
pub fn cumulativity(port: &Port, waits: bool) -> RuleResult {
    let to = |pe: usize, write: PortWrite| PortWrite { pe: Some(pe), ..write };
    match port.me() {
        0 => {
            port.set_word(ONE, 1);
            port.write(to(2, one(X, 1)))?;
            if waits {
                completion(port, 1)?;
            }
            port.write(to(1, signal(SIGNAL)))
        }
        1 => {
            notice(port, SIGNAL)?;
            port.write(to(2, signal(SIGNAL)))
        }
        _ => {
            notice(port, SIGNAL)?;
            if port.word(X) == 1 { Ok(()) } else { Err("signalled by PE 1, X = 0".into()) }
        }
    }
}
