//! Exhibit: a proxy coalesces signals into the value of their counter.

use crate::museum::port::{Port, PortWrite, RuleResult};

/// Number of signals that PE 0 sends to one counter.
const SIGNALS: u64 = 64;
/// Word of the counter on PE 1.
const COUNTER: u64 = 0;

/// EFA has no atomics, so the proxy of PE 0 maintains the counter of PE 1 and writes its new value. PE 1 waits until
/// the value includes all signals.
pub fn coalesced(port: &Port, fixed: bool) -> RuleResult {
    if port.me() == 1 {
        return port.until(
            |_| Ok(port.word(COUNTER) == SIGNALS),
            || format!("PE 1 has counted {} of {SIGNALS} signals", port.word(COUNTER)),
        );
    }
    // Signals of the kernel so far, signals in the last value posted, and whether that write is in flight.
    let (mut signals, mut posted, mut in_flight) = (0, 0, false);
    while posted < SIGNALS || in_flight {
        signals = (signals + 1).min(SIGNALS);
        let may_post = if fixed {
            // At most one value is in flight. Later signals are coalesced into the next value.
            !in_flight
        } else {
            // Two values in flight can arrive in any order, and the older value can be the one that remains.
            true
        };
        if signals > posted && may_post {
            // Each value has its own source word, so that no source is rewritten while its write is in flight.
            port.set_word(signals, signals);
            port.write(PortWrite { from: signals, to: COUNTER, words: 1, token: signals, ..PortWrite::default() })?;
            (posted, in_flight) = (signals, true);
        }
        in_flight &= !port.poll()?.done.contains(&posted);
        port.pause();
    }
    Ok(())
}
