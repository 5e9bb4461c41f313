//! Modelled NICs: the real kernels, ring and proxy over a wire whose times are computed.
//!
//! A [`ModelRail`] wraps a working rail (usually [`same_host`](super::same_host)). A write costs its poster as much
//! time as a post to the modelled card. It starts when the card is free, and completes after a round trip. The inner
//! rail moves the bytes as fast as possible. If memory is slower than the modelled rate, moving can be disabled
//! ([`ModelledNics::move_bytes`]) for timed passes, and enabled for the pass that is verified.
//!
//! **Time.** If a post takes longer on this machine than the modelled cost, the excess is a debt of the thread. The
//! thread repays it by waiting less in its next posts, on any card. An idle thread has no debt. The time for which a
//! card nevertheless waits, for a poster in debt or for bytes that are late, is counted in [`ModelledNics::behind`]. If
//! it is a large share of a result, the result describes this machine and not the card.
//!
//! Not in the model: the receiving card (writes of several senders to one target do not interfere), other traffic,
//! loss, congestion, and the host's memory bus beyond that of this machine.

mod nic;
mod poster;
mod profile;
mod rail;

pub use card_model::{Nic, Picoseconds, WriteTimes};
use poster::Poster;
pub use profile::{Profile, ProfileParameter};
pub use rail::ModelRail;

use super::Rail;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Prefix of provider names that request modelled cards: `model:p5`.
pub const PREFIX: &str = "model:";

/// The modelled cards of one rank. Clones refer to the same cards: threads that open rails on one card share its wire.
#[derive(Clone, Debug)]
pub struct ModelledNics(Arc<Cards>);

#[derive(Debug)]
struct Cards {
    name: String,
    profile: Profile,
    nics: Vec<Mutex<Nic>>,
    started: Instant,
    post: Duration,
    moves: Arc<AtomicBool>,
    /// Waiting time per card, in picoseconds.
    behind: Vec<AtomicU64>,
}

impl ModelledNics {
    /// Creates `rails` idle cards. `seed` determines their latencies.
    #[must_use]
    pub fn new(name: &str, profile: Profile, rails: usize, seed: u64) -> ModelledNics {
        let nics = (0..rails as u64).map(|rail| Mutex::new(Nic::new(&profile, seed << 16 | rail))).collect();
        ModelledNics(Arc::new(Cards {
            name: format!("{PREFIX}{name}"),
            post: Duration::from_secs_f64(profile.post_us.value * 1e-6),
            profile,
            nics,
            started: Instant::now(),
            moves: Arc::new(AtomicBool::new(true)),
            behind: (0..rails).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// Returns the profile's name: `p5`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.strip_prefix(PREFIX).unwrap_or(&self.0.name)
    }

    /// Returns the profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// Returns the line rate of a card in bits per second.
    #[must_use]
    pub fn line_rate(&self) -> u64 {
        (self.0.profile.line_rate_gbps.value * 1e9) as u64
    }

    /// Sets whether writes move their bytes if they are posted after this call. Immediates always arrive.
    pub fn move_bytes(&self, moves: bool) {
        self.0.moves.store(moves, Ordering::Relaxed);
    }

    /// Returns the flag that [`move_bytes`](ModelledNics::move_bytes) sets.
    #[must_use]
    pub fn moves(&self) -> Arc<AtomicBool> {
        self.0.moves.clone()
    }

    /// Creates rails for one thread, with a card over each rail in `inner`, from card `first` on. Rails in excess of
    /// the number of cards share the last card's wire.
    pub fn rails<R: Rail>(&self, first: usize, inner: impl IntoIterator<Item = R>) -> Vec<ModelRail<R>> {
        let (poster, last) = (Rc::new(Poster::default()), self.0.nics.len().saturating_sub(1));
        let rail =
            |(card, inner): (usize, R)| ModelRail::new(self.clone(), poster.clone(), (first + card).min(last), inner);
        inner.into_iter().enumerate().map(rail).collect()
    }

    /// Returns the total time for which each card has waited for this machine although a real card would not have
    /// waited. A card waits for its poster, or for bytes that could not be moved fast enough.
    #[must_use]
    pub fn behind(&self) -> Vec<Duration> {
        self.0.behind.iter().map(|behind| Duration::from_nanos(behind.load(Ordering::Relaxed) / 1000)).collect()
    }

    /// Returns the time that a card takes for `count` writes of `bytes` bytes, posted one after another by a thread
    /// that does nothing else.
    #[must_use]
    pub fn pace(&self, bytes: u64, count: u64) -> Duration {
        let depth = self.0.profile.queue_depth.value as usize;
        let time =
            Nic::new(&self.0.profile, 0).stream(bytes, count, depth, self.0.post.as_nanos() as Picoseconds * 1000);
        Duration::from_nanos(time / 1000)
    }

    fn add_behind(&self, card: usize, time: Picoseconds) {
        if time > 0 {
            self.0.behind[card].fetch_add(time, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Picoseconds {
        self.0.started.elapsed().as_nanos() as Picoseconds * 1000
    }
}
