//! Gathers of any length, and of values: what ranks measured must reach rank 0 whatever its size.
//!
//! A part that is longer than a piece takes several steps of the star. Each piece begins with one byte that says whether more
//! follows, and every rank gets that byte of every other one: so all make the same number of steps.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Bootstrap;
use super::error::BootstrapError;
use super::frame::{MAX_BYTES, MAX_PART_BYTES};
use super::wait::Clock;

impl Bootstrap {
    /// Every rank's value on rank 0, by rank; `None` on the others. Compact binary: a run's raw times reach rank 0 whole.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`], or a value that cannot be read.
    pub fn gather_values<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
    ) -> Result<Option<Vec<T>>, BootstrapError> {
        let bytes = self.encoded(mine, what)?;
        // One byte goes back to the others: whether more follows.
        let all = self.in_pieces(&bytes, 1, what)?;
        if self.rank() == 0 { self.decoded(&all, what).map(Some) } else { Ok(None) }
    }

    /// Every rank's value on every rank, by rank.
    ///
    /// # Errors
    /// As [`Bootstrap::gather_values`].
    pub fn all_gather_values<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
    ) -> Result<Vec<T>, BootstrapError> {
        let bytes = self.encoded(mine, what)?;
        let all = self.all_gather(&bytes, what)?;
        self.decoded(&all, what)
    }

    fn encoded(&self, mine: &impl Serialize, what: &str) -> Result<Vec<u8>, BootstrapError> {
        postcard::to_stdvec(mine).map_err(|error| self.unreadable(self.rank(), what, &error))
    }

    fn decoded<T: DeserializeOwned>(&self, all: &[Vec<u8>], what: &str) -> Result<Vec<T>, BootstrapError> {
        let value = |(rank, bytes): (usize, &Vec<u8>)| {
            postcard::from_bytes(bytes).map_err(|error| self.unreadable(rank, what, &error))
        };
        all.iter().enumerate().map(value).collect()
    }

    fn unreadable(&self, rank: usize, what: &str, error: &postcard::Error) -> BootstrapError {
        BootstrapError::garbage(format_args!("rank {rank}"), format_args!("{what}: {error}"))
    }

    /// Gathers parts piece by piece; ranks other than 0 get the first `spread` bytes of each piece (1: nothing of the parts).
    pub(super) fn in_pieces(
        &mut self,
        bytes: &[u8],
        spread: usize,
        what: &str,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if bytes.len() > MAX_PART_BYTES {
            return Err(BootstrapError::too_large(what, bytes.len()));
        }
        // All ranks' pieces fit into one message, with their lengths and the byte before each.
        let most = self.piece_bytes.min((MAX_BYTES / self.size()).saturating_sub(8)).max(1);
        let mut all = vec![Vec::new(); self.size()];
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(most));
            let piece: Vec<u8> = std::iter::once(u8::from(!later.is_empty())).chain(now.iter().copied()).collect();
            let mut clock = Clock::new(self.timeout, self.interrupt);
            let pieces = self.guard(|star| star.exchange(&piece, spread, what, &mut clock, None))?;
            let mut more = false;
            for (rank, (part, piece)) in all.iter_mut().zip(&pieces).enumerate() {
                let Some((follows, piece)) = piece.split_first() else {
                    let text = format!("a piece of {what:?} without its first byte");
                    return Err(BootstrapError::garbage(format_args!("rank {rank}"), text));
                };
                more |= *follows != 0;
                part.extend_from_slice(piece);
                if part.len() > MAX_PART_BYTES {
                    return Err(BootstrapError::too_large(what, part.len()));
                }
            }
            if !more {
                return Ok(all);
            }
            rest = later;
        }
    }
}
