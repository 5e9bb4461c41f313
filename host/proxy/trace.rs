//! The proxy's part of the trace of a put: the times at which sampled commands were popped, posted, completed and
//! published. A thread without a trace runs code that contains no tracing.

use cuda_std::thread::global_timer_ns;

/// Events that the engine and its thread report to a trace. The implementation for `()` compiles to nothing.
pub trait EngineObserver {
    /// Called when the commands with tickets from `first` to before `end` were popped from the ring.
    #[inline(always)]
    fn popped(&mut self, _first: u64, _end: u64) {}
    /// Called when a rail has accepted a piece of the command `ticket`.
    #[inline(always)]
    fn posted(&mut self, _ticket: u64, _rail: usize) {}
    /// A piece of the command `ticket` is complete.
    #[inline(always)]
    fn completed(&mut self, _ticket: u64) {}
    /// Called when the kernels were notified that all tickets below `watermark` are complete.
    #[inline(always)]
    fn published(&mut self, _watermark: u64) {}
}

impl EngineObserver for () {}

/// Selection of the commands to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Sampling interval, at least 1: commands whose tickets are multiples of this value are sampled.
    pub every: u64,
    /// Number of most recent samples to keep. At least 1.
    pub entries: usize,
}

/// Times of one command by this process's clock ([`global_timer_ns`]); 0 if the event has not occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandTimes {
    /// Ticket of the command.
    pub ticket: u64,
    /// Time at which the command was taken from the ring.
    pub popped: u64,
    /// Time at which each rail accepted the last piece.
    pub posted: Vec<u64>,
    /// Time at which the last piece was complete.
    pub completed: u64,
    /// Time at which a watermark that covers the command was written.
    pub published: u64,
}

/// A trace in progress.
#[derive(Debug)]
pub struct ProxyTrace {
    sampling: Sampling,
    entries: Vec<CommandTimes>,
    published: u64,
}

impl ProxyTrace {
    pub(super) fn new(sampling: Sampling, rails: usize, published: u64) -> ProxyTrace {
        let empty = CommandTimes { ticket: u64::MAX, posted: vec![0; rails], ..CommandTimes::default() };
        let sampling = Sampling { every: sampling.every.max(1), entries: sampling.entries.max(1) };
        ProxyTrace { sampling, entries: vec![empty; sampling.entries], published }
    }

    #[inline]
    fn entry(&mut self, ticket: u64) -> Option<&mut CommandTimes> {
        if !ticket.is_multiple_of(self.sampling.every) {
            return None;
        }
        let index = (ticket / self.sampling.every) as usize % self.sampling.entries;
        self.entries.get_mut(index)
    }

    /// Returns the first sampled ticket that is not below `ticket`.
    fn first_sampled(&self, ticket: u64) -> u64 {
        ticket.next_multiple_of(self.sampling.every)
    }

    /// Returns the samples, by ticket.
    pub(super) fn finish(mut self) -> Vec<CommandTimes> {
        self.entries.retain(|times| times.ticket != u64::MAX);
        self.entries.sort_by_key(|times| times.ticket);
        self.entries
    }
}

impl EngineObserver for ProxyTrace {
    fn popped(&mut self, first: u64, end: u64) {
        let mut ticket = self.first_sampled(first);
        if ticket >= end {
            return;
        }
        let now = global_timer_ns();
        while ticket < end {
            if let Some(times) = self.entry(ticket) {
                (times.ticket, times.popped, times.completed, times.published) = (ticket, now, 0, 0);
                times.posted.fill(0);
            }
            ticket += self.sampling.every;
        }
    }

    fn posted(&mut self, ticket: u64, rail: usize) {
        if let Some(times) = self.entry(ticket).filter(|times| times.ticket == ticket)
            && let Some(posted) = times.posted.get_mut(rail)
        {
            *posted = global_timer_ns();
        }
    }

    fn completed(&mut self, ticket: u64) {
        if let Some(times) = self.entry(ticket).filter(|times| times.ticket == ticket) {
            times.completed = global_timer_ns();
        }
    }

    fn published(&mut self, watermark: u64) {
        let mut ticket = self.first_sampled(self.published);
        self.published = watermark;
        if ticket >= watermark {
            return;
        }
        let now = global_timer_ns();
        while ticket < watermark {
            if let Some(times) = self.entry(ticket).filter(|times| times.ticket == ticket) {
                times.published = now;
            }
            ticket += self.sampling.every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_newest_multiples() {
        let mut trace = ProxyTrace::new(Sampling { every: 3, entries: 4 }, 2, 0);
        trace.popped(0, 10);
        trace.posted(3, 1);
        trace.posted(4, 1);
        trace.completed(3);
        trace.published(4);
        trace.popped(10, 20);
        trace.published(20);
        let times = trace.finish();
        assert_eq!(times.iter().map(|times| times.ticket).collect::<Vec<_>>(), [9, 12, 15, 18]);
        assert!(times.iter().all(|times| times.popped > 0 && times.published >= times.popped && times.completed == 0));
    }

    #[test]
    fn command_has_only_its_own_times() {
        let mut trace = ProxyTrace::new(Sampling { every: 1, entries: 8 }, 2, 0);
        trace.popped(0, 2);
        trace.posted(0, 1);
        trace.completed(0);
        trace.published(1);
        let times = trace.finish();
        assert!(times[0].posted[0] == 0 && times[0].posted[1] > 0 && times[0].completed > 0 && times[0].published > 0);
        assert_eq!((times[1].posted.as_slice(), times[1].completed, times[1].published), (&[0, 0][..], 0, 0));
    }
}
