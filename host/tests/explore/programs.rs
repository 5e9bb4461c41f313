//! Bodies of the PEs' kernels: calls of `gin` as in applications, and the faults that the explorer must find.

use super::seat::TestPe;
use kernels::gin::{Block, Context, Sym};
use kernels::pattern::seed;
use kernels::ring::Status;

type CallResult = Result<(), Status>;

/// Returns the seed of the data that PE `from` sends to PE `to` in a round.
fn bytes_of(from: u32, to: u32, round: u32) -> u64 {
    seed(from, round, to)
}

/// Sends messages from all PEs to all PEs in several rounds without waiting for completion. Each round uses a separate
/// source object.
pub fn messages(seat: &TestPe) -> CallResult {
    exchange(seat, 3, false)
}

/// Like [`messages`], but each round ends with `quiet`.
pub fn messages_and_quiet(seat: &TestPe) -> CallResult {
    exchange(seat, 3, true)
}

/// Like [`messages_and_quiet`], with fewer interleavings.
pub fn two_messages_and_quiet(seat: &TestPe) -> CallResult {
    exchange(seat, 2, true)
}

fn exchange(seat: &TestPe, rounds: u32, quiet: bool) -> CallResult {
    let (mut line, inbox) = (seat.line(), seat.inbox(0));
    for round in 1..=rounds {
        for pe in seat.others() {
            seat.doing("send of round", round);
            let from = seat.object(u64::from(round * seat.pes + pe));
            seat.fill(from, bytes_of(seat.me, pe, round));
            line.send(inbox, round, from, pe)?;
        }
        for pe in seat.others() {
            seat.doing("receive of round", round);
            let to = seat.object(u64::from(pe));
            line.receive(inbox, round, to, pe)?;
            seat.expect(to, bytes_of(pe, seat.me, round), "the message");
        }
        if quiet {
            seat.doing("quiet of round", round);
            line.quiet()?;
        }
    }
    seat.doing("quiet after round", rounds);
    line.quiet()
}

/// Every PE puts to every PE in several rounds, and waits for the sum of a single signal. Faulty: a PE's next put may
/// be mistaken for a put of another PE that has not arrived.
pub fn exchange_with_one_signal(seat: &TestPe) -> CallResult {
    exchange_by_puts(seat, |_| 0, seat.pes - 1)
}

/// Like [`exchange_with_one_signal`], but correct, with a signal per sender.
pub fn exchange_with_signals(seat: &TestPe) -> CallResult {
    exchange_by_puts(seat, |pe| pe, 1)
}

fn exchange_by_puts(seat: &TestPe, signal: impl Fn(u32) -> u32, each: u32) -> CallResult {
    let mut line = seat.line();
    for turn in 0..2 {
        // Uses only objects of this round.
        let object = |sends: u32, pe: u32| seat.object(u64::from((2 * turn + sends) * seat.pes + pe));
        seat.doing("puts of turn", turn);
        for pe in seat.others() {
            seat.fill(object(1, pe), bytes_of(seat.me, pe, turn));
            line.put_signal_nbi(object(0, seat.me), object(1, pe), seat.signal(signal(seat.me)), 1, pe)?;
        }
        seat.doing("wait of turn", turn);
        for pe in seat.others() {
            line.signal_wait_until(seat.signal(signal(pe)), u64::from((turn + 1) * each))?;
        }
        for pe in seat.others() {
            seat.expect(object(0, pe), bytes_of(pe, seat.me, turn), "what was put");
        }
        line.quiet()?;
    }
    Ok(())
}

/// One put, and a signal as the response.
pub fn one_put(seat: &TestPe) -> CallResult {
    let mut line = seat.line();
    if seat.me == 0 {
        seat.fill(seat.object(0), bytes_of(0, 1, 0));
        line.put_signal_nbi(seat.object(1), seat.object(0), seat.signal(0), 1, 1)?;
        line.signal_wait_until(seat.signal(1), 1)?;
        return line.quiet();
    }
    line.signal_wait_until(seat.signal(0), 1)?;
    seat.expect(seat.object(1), bytes_of(0, 1, 0), "the put");
    line.signal_op(seat.signal(1), 1, 0)
}

/// Two concurrent puts with one signal. Faulty: PE 1 interprets a sum of one as the arrival of the first put.
pub fn two_puts_one_signal(seat: &TestPe) -> CallResult {
    two_puts(seat, |_| 0, |_, put| u64::from(put) + 1)
}

/// Two concurrent puts, each with its own signal.
pub fn two_puts_two_signals(seat: &TestPe) -> CallResult {
    two_puts(seat, |put| put, |_, _| 1)
}

/// Two concurrent puts with one signal. The receiver waits for the sum of both.
pub fn two_puts_one_sum(seat: &TestPe) -> CallResult {
    two_puts(seat, |_| 0, |puts, _| u64::from(puts))
}

fn two_puts(seat: &TestPe, signal: impl Fn(u32) -> u32, wanted: impl Fn(u32, u32) -> u64) -> CallResult {
    const PUTS: u32 = 2;
    let mut line = seat.line();
    if seat.me == 0 {
        for put in 0..PUTS {
            seat.doing("put_signal", put);
            let from = seat.object(u64::from(put));
            seat.fill(from, bytes_of(0, 1, put));
            line.put_signal_nbi(seat.object(u64::from(PUTS + put)), from, seat.signal(signal(put)), 1, 1)?;
        }
        return line.quiet();
    }
    for put in 0..PUTS {
        seat.doing("signal_wait_until of put", put);
        line.signal_wait_until(seat.signal(signal(put)), wanted(PUTS, put))?;
        seat.expect(seat.object(u64::from(PUTS + put)), bytes_of(0, 1, put), "the put");
    }
    Ok(())
}

/// Puts in one direction into two slots, which the receiver returns after it has read them.
pub fn credits(seat: &TestPe) -> CallResult {
    stream(seat, true, true)
}

/// Like [`credits`], but faulty: the receiver returns a slot before it has read it.
pub fn credit_before_the_read(seat: &TestPe) -> CallResult {
    stream(seat, false, true)
}

/// Like [`credits`], but faulty: the sender overwrites a source before its put is complete.
pub fn source_written_early(seat: &TestPe) -> CallResult {
    stream(seat, true, false)
}

fn stream(seat: &TestPe, reads_first: bool, settles: bool) -> CallResult {
    const SLOTS: u32 = 2;
    let mut line = seat.line();
    let slot = |number: u32| seat.object(u64::from(8 + number % SLOTS));
    let (arrived, free) =
        (|number: u32| seat.signal(number % SLOTS), |number: u32| seat.signal(SLOTS + number % SLOTS));
    for number in 0..2 * SLOTS {
        let round = u64::from(number / SLOTS);
        if seat.me == 0 {
            seat.doing("wait for the credit of put", number);
            line.signal_wait_until(free(number), round)?;
            let from = if settles {
                // Completes the previous put from this object.
                line.quiet()?;
                seat.object(u64::from(number % SLOTS))
            } else {
                seat.object(0)
            };
            seat.doing("put_signal", number);
            seat.fill(from, bytes_of(0, 1, number));
            line.put_signal_nbi(slot(number), from, arrived(number), 1, 1)?;
            continue;
        }
        seat.doing("signal_wait_until of put", number);
        line.signal_wait_until(arrived(number), round + 1)?;
        if reads_first {
            seat.expect(slot(number), bytes_of(0, 1, number), "the put");
            line.signal_op(free(number), 1, 0)?;
        } else {
            line.signal_op(free(number), 1, 0)?;
            seat.stop();
            seat.expect(slot(number), bytes_of(0, 1, number), "the put");
        }
    }
    line.quiet()
}

/// More puts than the target's account has places, each to a separate object.
pub fn places(seat: &TestPe) -> CallResult {
    const PUTS: u32 = 5;
    let mut line = seat.line();
    for put in 0..PUTS {
        let (object, signal) = (seat.object(u64::from(put)), seat.signal(put));
        if seat.me == 0 {
            seat.doing("put_signal", put);
            seat.fill(object, bytes_of(0, 1, put));
            line.put_signal_nbi(object, object, signal, 1, 1)?;
        } else {
            seat.doing("signal_wait_until of put", put);
            line.signal_wait_until(signal, 1)?;
            seat.expect(object, bytes_of(0, 1, put), "the put");
        }
    }
    line.quiet()
}

/// Puts to the next PE, which are synchronized only by the barrier.
pub fn barrier(seat: &TestPe) -> CallResult {
    around(seat, |line| line.barrier_all())
}

/// Like [`barrier`], but faulty: the barrier does not wait for the PE's own puts.
pub fn barrier_without_quiet(seat: &TestPe) -> CallResult {
    let passed = std::cell::Cell::new(0);
    around(seat, |line| {
        passed.set(passed.get() + u64::from(seat.pes - 1));
        for pe in seat.others() {
            line.signal_op(seat.signal(0), 1, pe)?;
        }
        line.signal_wait_until(seat.signal(0), passed.get())
    })
}

/// Like [`barrier`], but faulty: the barrier does not wait for all PEs.
pub fn barrier_of_some(seat: &TestPe) -> CallResult {
    let passed = std::cell::Cell::new(0);
    around(seat, |line| {
        passed.set(passed.get() + 1);
        line.quiet()?;
        for pe in seat.others() {
            line.signal_op(seat.signal(0), 1, pe)?;
        }
        line.signal_wait_until(seat.signal(0), passed.get())
    })
}

fn around(seat: &TestPe, barrier: impl Fn(&mut Context<Block>) -> CallResult) -> CallResult {
    let mut line = seat.line();
    let (next, before) = ((seat.me + 1) % seat.pes, (seat.me + seat.pes - 1) % seat.pes);
    for round in 0..2 {
        let place = |pe: u32| -> Sym<u8> { seat.object(u64::from(round * seat.pes + pe)) };
        seat.doing("put before barrier", round);
        seat.fill(place(seat.me), bytes_of(seat.me, next, round));
        line.put_nbi(place(seat.me), place(seat.me), next)?;
        seat.doing("barrier", round);
        seat.enter();
        barrier(&mut line)?;
        seat.has_passed();
        seat.expect(place(before), bytes_of(before, seat.me, round), "what was put before the barrier");
    }
    Ok(())
}

/// Broadcasts of PE 0 by messages, as in kernels/src/collective/messages.rs: the other PEs acknowledge with a signal
/// selected by the parity of the round.
pub fn broadcast(seat: &TestPe) -> CallResult {
    broadcast_by(seat, 2)
}

/// Like [`broadcast`], but faulty, with one signal for the acknowledgements of all rounds.
pub fn broadcast_with_one_signal(seat: &TestPe) -> CallResult {
    broadcast_by(seat, 1)
}

fn broadcast_by(seat: &TestPe, signals: u32) -> CallResult {
    let (mut line, inbox) = (seat.line(), seat.inbox(0));
    let others = u64::from(seat.pes - 1);
    for round in 1..=4 {
        let acknowledged = seat.signal(round % signals);
        if seat.me != 0 {
            seat.doing("receive of round", round);
            line.receive(inbox, round, seat.object(0), 0)?;
            seat.expect(seat.object(0), bytes_of(0, 0, round), "the broadcast");
            line.signal_op(acknowledged, 1, 0)?;
            line.quiet()?;
            continue;
        }
        seat.doing("broadcast", round);
        // All PEs have received the round before the previous one.
        let rounds = if signals == 2 { u64::from(round - 1) / 2 } else { u64::from(round).saturating_sub(2) };
        line.signal_wait_until(acknowledged, rounds * others)?;
        let from = seat.object(u64::from(round));
        seat.fill(from, bytes_of(0, 0, round));
        for pe in seat.others() {
            line.send(inbox, round, from, pe)?;
        }
        line.quiet()?;
    }
    Ok(())
}
