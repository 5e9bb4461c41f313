//! Passes of messages: verified, as round trips, and with a window in flight.

use super::{MOST_SINGLES, Mode, Sendrecv, SendrecvConfig};
use crate::error::Failure;
use crate::payload::PayloadSlots;
use crate::rails::UNEXPECTED_MESSAGE;
use crate::series::Sample;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::Operation;
use ginlab::measure::pattern;
use std::collections::VecDeque;
use std::time::Instant;

impl Sendrecv {
    /// Returns half of the microseconds of single round trips on the rank that sends first.
    async fn round_trips(&self, tuple: &SendrecvConfig) -> Result<Vec<f64>, Failure> {
        let (flow, begins) = (&self.job.flow, self.begins);
        let mut singles = Vec::new();
        for number in 0..tuple.messages {
            let rail = (number % tuple.rails as u64) as usize;
            // Post the receive first; otherwise the provider would have to buffer the message.
            let room = flow.recv(rail, &self.into, 0, tuple.bytes);
            if begins {
                let started = Instant::now();
                let send = flow.send(rail, self.peer, &self.out, 0, tuple.bytes);
                self.expect(tuple, room.await?)?;
                if singles.len() < MOST_SINGLES {
                    singles.push(started.elapsed().as_secs_f64() * 1e6 / 2.0);
                }
                send.await?;
            } else {
                self.expect(tuple, room.await?)?;
                flow.send(rail, self.peer, &self.out, 0, tuple.bytes).await?;
            }
        }
        Ok(singles)
    }

    fn expect(&self, tuple: &SendrecvConfig, bytes: u64) -> Result<(), Failure> {
        if bytes == tuple.bytes {
            return Ok(());
        }
        let SendrecvConfig { bytes: expected, .. } = tuple;
        Err(Failure::Run(format!(
            "unexpected message of {bytes} B (rank {} sends {expected} B): {UNEXPECTED_MESSAGE}",
            self.other
        )))
    }

    async fn stream_out(&self, tuple: &SendrecvConfig, messages: u64) -> Result<(), Failure> {
        let flow = &self.job.flow;
        // The receiver sends one message when its first receives are posted, and another one when everything has
        // arrived.
        flow.recv(0, &self.into, 0, 1).await?;
        let all = flow.recv(0, &self.into, 0, 1);
        let mut flight: VecDeque<Operation<AnyRail>> = VecDeque::with_capacity(tuple.window as usize);
        for number in 0..messages {
            if flight.len() as u64 == tuple.window
                && let Some(oldest) = flight.pop_front()
            {
                oldest.await?;
            }
            let rail = (number % tuple.rails as u64) as usize;
            let offset = number % tuple.window * tuple.stride();
            flight.push_back(flow.send(rail, self.peer, &self.out, offset, tuple.bytes));
        }
        for send in flight {
            send.await?;
        }
        all.await?;
        Ok(())
    }

    async fn stream_in(&self, tuple: &SendrecvConfig, messages: u64) -> Result<(), Failure> {
        let flow = &self.job.flow;
        let room = |number: u64| {
            let rail = (number % tuple.rails as u64) as usize;
            flow.recv(rail, &self.into, number % tuple.window * tuple.stride(), tuple.bytes)
        };
        let mut numbers = 0..messages;
        let mut rooms: VecDeque<_> = numbers.by_ref().take(tuple.window as usize).map(room).collect();
        flow.send(0, self.peer, &self.out, 0, 1).await?;
        while let Some(oldest) = rooms.pop_front() {
            self.expect(tuple, oldest.await?)?;
            rooms.extend(numbers.next().map(room));
        }
        flow.send(0, self.peer, &self.out, 0, 1).await?;
        Ok(())
    }

    /// Sends a window of messages into poisoned memory, from the rank that sends first.
    pub(super) async fn verify(
        &mut self,
        tuple: SendrecvConfig,
        ranks: &mut Bootstrap,
    ) -> Result<Option<u64>, Failure> {
        let iteration = self.iteration;
        self.iteration += 1;
        let slots_of = |rank: usize| {
            let seed = move |slot: u64| pattern::seed(rank as u32, iteration, slot as u32);
            (0..tuple.window).map(move |slot| (slot * tuple.stride(), seed(slot)))
        };
        let received = PayloadSlots(self.into.buffer(), tuple.bytes);
        PayloadSlots(self.out.buffer(), tuple.bytes).fill(slots_of(ranks.rank()))?;
        received.poison(slots_of(self.other))?;
        ranks.barrier("start of the verified pass")?;
        if self.begins {
            self.stream_out(&tuple, tuple.window).await?;
            return Ok(None);
        }
        self.stream_in(&tuple, tuple.window).await?;
        Ok(Some(received.wrong(slots_of(self.other))?))
    }

    pub(super) async fn run(&self, tuple: SendrecvConfig, ranks: &Bootstrap) -> Result<Sample, Failure> {
        let mut parts = Vec::new();
        let started = Instant::now();
        match tuple.mode {
            Mode::Roundtrip => parts.push(self.round_trips(&tuple).await?),
            Mode::Window if self.begins => self.stream_out(&tuple, tuple.messages).await?,
            Mode::Window => self.stream_in(&tuple, tuple.messages).await?,
        }
        let elapsed = started.elapsed().as_secs_f64() * 1e6;
        if !self.begins {
            return Ok(Sample::default());
        }
        let ways = if tuple.mode == Mode::Roundtrip { 2 } else { 1 };
        // Only the single round trips of rank 0 are reported.
        parts.retain(|_| ranks.rank() == 0);
        Ok(Sample { times: vec![elapsed / (tuple.messages * ways) as f64], parts })
    }
}
