//! The proxy's part of the life of a put: when sampled commands were popped, posted, completed and published. A thread that
//! does not trace runs code without any of it.

use cuda_std::thread::global_timer_ns;

/// What the engine and its thread tell a trace. Without one it is `()`, and nothing of it is left.
pub trait Watch {
    /// The ring gave up the commands with tickets from `first` to before `end`.
    #[inline(always)]
    fn popped(&mut self, _first: u64, _end: u64) {}
    /// A rail has taken a piece of this command.
    #[inline(always)]
    fn posted(&mut self, _ticket: u64, _rail: usize) {}
    /// A piece of this command is complete.
    #[inline(always)]
    fn completed(&mut self, _ticket: u64) {}
    /// The kernels are told that all tickets below this are done.
    #[inline(always)]
    fn published(&mut self, _watermark: u64) {}
}

impl Watch for () {}

/// Which commands are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Those with tickets that are multiples of this, at least 1.
    pub every: u64,
    /// The newest so many, at least 1.
    pub entries: usize,
}

/// Times of one command by this process's clock ([`global_timer_ns`]); 0: has not happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Its ticket.
    pub ticket: u64,
    /// Taken from the ring.
    pub popped: u64,
    /// The last piece was taken by each rail.
    pub posted: Vec<u64>,
    /// The last piece is complete.
    pub completed: u64,
    /// The watermark that covers it is written.
    pub published: u64,
}

/// A trace under way.
#[derive(Debug)]
pub struct Trace {
    sampling: Sampling,
    entries: Vec<Times>,
    /// The newest watermark.
    published: u64,
}

impl Trace {
    pub(super) fn new(sampling: Sampling, rails: usize, published: u64) -> Trace {
        let empty = Times { ticket: u64::MAX, posted: vec![0; rails], ..Times::default() };
        let sampling = Sampling { every: sampling.every.max(1), entries: sampling.entries.max(1) };
        Trace { sampling, entries: vec![empty; sampling.entries], published }
    }

    #[inline]
    fn entry(&mut self, ticket: u64) -> Option<&mut Times> {
        if !ticket.is_multiple_of(self.sampling.every) {
            return None;
        }
        let index = (ticket / self.sampling.every) as usize % self.sampling.entries;
        self.entries.get_mut(index)
    }

    /// The first sampled ticket from this one on.
    fn first_sampled(&self, ticket: u64) -> u64 {
        ticket.next_multiple_of(self.sampling.every)
    }

    /// What was sampled, by ticket.
    pub(super) fn finish(mut self) -> Vec<Times> {
        self.entries.retain(|times| times.ticket != u64::MAX);
        self.entries.sort_by_key(|times| times.ticket);
        self.entries
    }
}

impl Watch for Trace {
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
    fn samples_are_the_newest_multiples() {
        let mut trace = Trace::new(Sampling { every: 3, entries: 4 }, 2, 0);
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
    fn a_command_has_its_own_times_only() {
        let mut trace = Trace::new(Sampling { every: 1, entries: 8 }, 2, 0);
        trace.popped(0, 2);
        trace.posted(0, 1);
        trace.completed(0);
        trace.published(1);
        let times = trace.finish();
        assert!(times[0].posted[0] == 0 && times[0].posted[1] > 0 && times[0].completed > 0 && times[0].published > 0);
        assert_eq!((times[1].posted.as_slice(), times[1].completed, times[1].published), (&[0, 0][..], 0, 0));
    }
}
