//! Modelled NICs: the real kernels, ring and proxy over a wire that only its arithmetic knows.
//!
//! A [`ModelRail`] lies over a rail that works ([`same_host`](super::same_host), mostly). A write costs its poster as much time as a post to the
//! modelled card, goes out when the card is free, and completes after a round trip. Its bytes are moved by the rail
//! below, as fast as that can; where memory cannot follow the modelled rate, moving can be turned off
//! ([`Model::move_bytes`]) for the passes that are timed, and left on for the pass that is verified.
//!
//! **Time.** What this machine needs for a post beyond the modelled cost is a debt of the thread, which it pays back by waiting less
//! in its next posts, on whichever card; a thread that has nothing to do owes nothing any more. Where a card would have waited all the
//! same, for a poster in debt or for bytes that were not there when all else was done, that time is counted: [`Model::behind`]. A
//! figure in which it is a large share is this machine's and not the card's.
//!
//! Not in the model: the receiving card (writes of several senders to one target do not meet), other traffic, loss,
//! congestion, the host's memory bus beyond what the machine itself has.

mod nic;
mod poster;
mod profile;
mod rail;

pub use card_model::{Course, Nic, Picoseconds};
use poster::Poster;
pub use profile::{Figure, Profile};
pub use rail::ModelRail;

use super::Rail;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How providers of this kind are named: `model:p5`.
pub const PREFIX: &str = "model:";

/// The cards of one rank. Its clones are the same cards: threads that open rails on one card share its wire.
#[derive(Clone, Debug)]
pub struct Model(Arc<Cards>);

#[derive(Debug)]
struct Cards {
    name: String,
    profile: Profile,
    nics: Vec<Mutex<Nic>>,
    started: Instant,
    post: Duration,
    moves: Arc<AtomicBool>,
    /// By card, in picoseconds.
    behind: Vec<AtomicU64>,
}

impl Model {
    /// Idle cards, `rails` of them. `seed`: which latencies they draw.
    #[must_use]
    pub fn new(name: &str, profile: Profile, rails: usize, seed: u64) -> Model {
        let nics = (0..rails as u64).map(|rail| Mutex::new(Nic::new(&profile, seed << 16 | rail))).collect();
        Model(Arc::new(Cards {
            name: format!("{PREFIX}{name}"),
            post: Duration::from_secs_f64(profile.post_us.value * 1e-6),
            profile,
            nics,
            started: Instant::now(),
            moves: Arc::new(AtomicBool::new(true)),
            behind: (0..rails).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// The profile's name: `p5`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.strip_prefix(PREFIX).unwrap_or(&self.0.name)
    }

    /// The figures.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// Line rate of a card in bits per second.
    #[must_use]
    pub fn line_rate(&self) -> u64 {
        (self.0.profile.line_rate_gbps.value * 1e9) as u64
    }

    /// Whether writes posted from now on move their bytes. Immediates arrive in any case.
    pub fn move_bytes(&self, moves: bool) {
        self.0.moves.store(moves, Ordering::Relaxed);
    }

    /// Whether bytes are moved now: what [`move_bytes`](Model::move_bytes) sets.
    #[must_use]
    pub fn moves(&self) -> Arc<AtomicBool> {
        self.0.moves.clone()
    }

    /// Rails for one thread: a card over each of these rails, which work; those beyond the cards that there are share the last
    /// one's wire.
    pub fn rails<R: Rail>(&self, inner: impl IntoIterator<Item = R>) -> Vec<ModelRail<R>> {
        let (poster, last) = (Rc::new(Poster::default()), self.0.nics.len().saturating_sub(1));
        let rail = |(card, inner): (usize, R)| ModelRail::new(self.clone(), poster.clone(), card.min(last), inner);
        inner.into_iter().enumerate().map(rail).collect()
    }

    /// How long each card has waited for this machine so far, where a real one would not have: for its poster, or for bytes
    /// that could not be moved as fast.
    #[must_use]
    pub fn behind(&self) -> Vec<Duration> {
        self.0.behind.iter().map(|behind| Duration::from_nanos(behind.load(Ordering::Relaxed) / 1000)).collect()
    }

    /// How long a card takes for so many writes of one size that a thread which does nothing else posts one after another.
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
