//! Jobs that continue without ranks that are missing ([`BootstrapOptions::partial`](super::BootstrapOptions::partial)).
//!
//! In such a job, a rank that does not connect in time, leaves, or reports an error does not end the job. Rank 0
//! excludes it by sending an empty part for it in the current step. All other ranks receive the empty part in the same
//! step, and every rank then renumbers the remaining ranks.

use super::Bootstrap;
use super::error::{BootstrapError, FailureKind, human};
use super::link::Link;
use super::progress::lock;
use super::star::Star;
use super::wait::Clock;

/// A rank that is missing from a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRank {
    /// Number of the rank at the start of the job.
    pub rank: usize,
    /// Host name of the rank; `None` if it did not connect.
    pub host: Option<String>,
    /// Reason why the rank is missing. Known only on rank 0.
    pub why: String,
}

/// A rank that rank 0 has excluded.
pub(super) struct Excluded {
    host: Option<String>,
    why: String,
}

impl Star {
    /// Excludes the ranks from the job. Returns whether this job continues without them.
    pub(super) fn exclude(&mut self, ranks: &[usize], why: &str) -> bool {
        if !self.partial || self.rank != 0 {
            return false;
        }
        for rank in ranks.iter().copied().filter(|rank| *rank != 0) {
            let link = self.links[rank].take();
            let host = link.map(|link| {
                let host = link.member.host.clone();
                // The rank may still be waiting. Notifies it that the job continues without it.
                Link::close(link);
                host
            });
            self.excluded[rank].get_or_insert(Excluded { host, why: why.to_owned() });
        }
        true
    }

    /// Excludes the ranks if the time limit has passed. Returns whether it has excluded them.
    pub(super) fn exclude_late(&mut self, ranks: &[usize], what: &str, clock: &Clock) -> bool {
        let late = clock.expired() && !clock.interrupted();
        late && self.exclude(ranks, &format!("it did not arrive at {what:?} within {}", human(clock.timeout)))
    }

    /// Excludes a rank that has failed. Returns the error if the job does not continue without it.
    pub(super) fn exclude_failed(&mut self, rank: usize, error: BootstrapError) -> Result<(), BootstrapError> {
        // Ctrl-C ends every rank.
        if error.ending() == FailureKind::Interrupted || !self.exclude(&[rank], &error.to_string()) {
            return Err(error);
        }
        Ok(())
    }

    /// Returns whether the rank is excluded.
    pub(super) fn is_excluded(&self, rank: usize) -> bool {
        self.excluded[rank].is_some()
    }

    /// Renumbers the ranks: `left` are the current numbers of the remaining ranks.
    fn renumber(&mut self, left: &[usize]) {
        let mut links = std::mem::take(&mut self.links);
        self.links = left.iter().map(|rank| links[*rank].take()).collect();
        self.excluded = left.iter().map(|_| None).collect();
        self.rank = left.iter().position(|rank| *rank == self.rank).unwrap_or(self.rank);
        self.size = left.len();
        self.progress.renumber(self.rank, left);
        if let Some(children) = &mut self.children {
            children.renumber(left);
        }
    }
}

impl Bootstrap {
    /// Returns the ranks that are missing from the job.
    #[must_use]
    pub fn missing(&self) -> &[MissingRank] {
        &self.missing
    }

    /// Sets whether the job continues without ranks that leave after this call. Every rank must call this function at
    /// the same point.
    pub fn set_partial(&mut self, partial: bool) {
        self.partial = partial;
        lock(&self.star).partial = partial;
    }

    /// Removes the ranks that have no part from the job.
    pub(super) fn leave_out(&mut self, gone: &[bool]) {
        let mut star = lock(&self.star);
        let left: Vec<usize> = (0..gone.len()).filter(|rank| !gone[*rank]).collect();
        for rank in (0..gone.len()).filter(|rank| gone[*rank]) {
            let excluded = star.excluded[rank].take();
            let known = self.members.get(rank).map(|member| member.host.clone());
            let (host, why) = excluded.map_or((None, String::new()), |excluded| (excluded.host, excluded.why));
            self.missing.push(MissingRank { rank: self.first_numbers[rank], host: host.or(known), why });
        }
        star.renumber(&left);
        (self.rank, self.size) = (star.rank, star.size);
        drop(star);
        let first_numbers = std::mem::take(&mut self.first_numbers);
        self.first_numbers = left.iter().map(|rank| first_numbers[*rank]).collect();
        let mut members = std::mem::take(&mut self.members);
        self.members = left.iter().filter_map(|rank| members.get_mut(*rank).map(std::mem::take)).collect();
    }
}
