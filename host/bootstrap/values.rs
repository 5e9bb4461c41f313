//! Gathers of parts of any length and of typed values, so that results of any size reach rank 0.
//!
//! A part that is longer than a piece takes several steps of the star. Each piece starts with one byte that indicates
//! whether more pieces follow. Every rank receives this byte from every other rank, so that all ranks perform the same
//! number of steps.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Bootstrap;
use super::error::BootstrapError;
use super::frame::{MAX_BYTES, MAX_PART_BYTES};
use super::parts::{PART_OVERHEAD_BYTES, Spread};
use super::wait::Clock;

impl Bootstrap {
    /// Returns every rank's value, by rank, on rank 0, and `None` on the other ranks. Values are encoded in a compact
    /// binary format, so that rank 0 can collect all raw times of a run.
    ///
    /// # Errors
    /// Returns the same errors as [`Bootstrap::all_gather`], and an error if a value cannot be decoded.
    pub fn gather_values<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
    ) -> Result<Option<Vec<T>>, BootstrapError> {
        let bytes = self.encoded(mine, what)?;
        let all = self.in_pieces(&bytes, Spread::Nothing, what)?;
        if self.rank() == 0 { self.decoded(&all, what).map(Some) } else { Ok(None) }
    }

    /// Returns every rank's value, by rank, on every rank.
    ///
    /// # Errors
    /// Returns the same errors as [`Bootstrap::gather_values`].
    pub fn all_gather_values<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
    ) -> Result<Vec<T>, BootstrapError> {
        let bytes = self.encoded(mine, what)?;
        let all = self.all_gather(&bytes, what)?;
        self.decoded(&all, what)
    }

    /// Returns rank 0's value on every rank. The other ranks' values are ignored.
    ///
    /// # Errors
    /// Returns the same errors as [`Bootstrap::gather_values`].
    pub fn value_of_first<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        what: &str,
    ) -> Result<T, BootstrapError> {
        let bytes = if self.rank() == 0 { self.encoded(mine, what)? } else { Vec::new() };
        let mut all = self.in_pieces(&bytes, Spread::First, what)?;
        all.truncate(1);
        let first = self.decoded(&all, what)?.pop();
        first.ok_or_else(|| BootstrapError::garbage("rank 0", format_args!("{what}: no value")))
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

    /// Gathers parts piece by piece. Ranks other than 0 receive the parts that `spread` selects, and an empty part of
    /// every other rank.
    pub(super) fn in_pieces(
        &mut self,
        bytes: &[u8],
        spread: Spread,
        what: &str,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if bytes.len() > MAX_PART_BYTES {
            return Err(BootstrapError::too_large(what, bytes.len()));
        }
        // Ensures that the pieces of all ranks fit into one message, each with its first byte.
        let most = self.piece_bytes.min((MAX_BYTES / self.size()).saturating_sub(PART_OVERHEAD_BYTES + 1)).max(1);
        let mut all = vec![Vec::new(); self.size()];
        let mut gone = vec![false; self.size()];
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(most));
            let piece: Vec<u8> = std::iter::once(u8::from(!later.is_empty())).chain(now.iter().copied()).collect();
            let mut clock = Clock::new(self.timeout, self.interrupt);
            let pieces = self.guard(|star| star.exchange(&piece, spread, what, &mut clock, None))?;
            let mut more = false;
            for (rank, (part, piece)) in all.iter_mut().zip(&pieces).enumerate() {
                let Some((follows, piece)) = piece.split_first() else {
                    if self.partial {
                        gone[rank] = true;
                        continue;
                    }
                    let text = format!("a part of {what:?} without its first byte");
                    return Err(BootstrapError::garbage(format_args!("rank {rank}"), text));
                };
                more |= *follows != 0;
                part.extend_from_slice(piece);
                if part.len() > MAX_PART_BYTES {
                    return Err(BootstrapError::too_large(what, part.len()));
                }
            }
            if !more {
                if gone.contains(&true) {
                    self.leave_out(&gone);
                    all = all.into_iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(part, _)| part).collect();
                }
                return Ok(all);
            }
            rest = later;
        }
    }
}
