//! Ranks of a job: rendezvous, and data exchange before any fabric is open.
//!
//! The only mechanism is a TCP star with rank 0 at its centre ([`Bootstrap`]). There are three ways to find rank 0:
//!
//! - `local`: this program starts copies of itself.
//! - `tcp`: a launcher sets RANK, WORLD_SIZE and MASTER_ADDR, or SkyPilot's variables are set.
//! - `mpi`: mpirun or srun starts the ranks, and MPI only distributes rank 0's addresses.
//!
//! For each kind, every wait is bounded, ends on Ctrl-C, and names the missing ranks. All ranks must make the same
//! calls in the same order. If a rank does not, the error names it, and the labels of both calls.
//!
//! The first error is final: it is sent to the other ranks, and every later call returns it.
//!
//! ```no_run
//! use ginlab_bootstrap::{Bootstrap, BootstrapOptions};
//!
//! let mut ranks = Bootstrap::auto(Some(2), BootstrapOptions::default())?;
//! let pids = ranks.all_gather(std::process::id().to_string().as_bytes(), "pids")?;
//! assert_eq!(pids.len(), ranks.size());
//! ranks.finish()?;
//! # Ok::<(), ginlab_bootstrap::BootstrapError>(())
//! ```

mod acceptor;
mod addresses;
mod children;
mod connect;
mod detect;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzzed;
mod greeting;
mod handshake;
mod host;
mod identity;
mod link;
mod local;
#[cfg(test)]
mod middle;
#[cfg(feature = "mpi")]
mod mpi;
mod open;
mod partial;
mod parts;
mod progress;
mod seal;
pub mod session;
mod star;
mod tcp;
mod values;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use detect::{BootstrapKind, Launcher, process_env};
pub use error::{BootstrapError, FailureKind, rank_list};
pub use identity::Member;
pub use local::{is_spawned_child, random_token};
pub use partial::MissingRank;
pub use tcp::{TcpSettings, token_for};

use ginlab_base::pairing::Pairing;
use parts::Spread;
use progress::{Reporter, lock};
use star::Star;

/// Returns the version text of the MPI library; `None` in a build without the feature `mpi`.
pub fn mpi_version() -> Option<String> {
    #[cfg(feature = "mpi")]
    // This function may be called before MPI_Init. Some libraries return several lines, or include the NUL that
    // terminates a C string.
    return ::mpi::environment::library_version().ok().and_then(|text| {
        let line = text.lines().next()?.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        Some(line.to_owned())
    });
    #[cfg(not(feature = "mpi"))]
    None
}

/// Options for opening a bootstrap of any kind.
#[derive(Clone, Debug)]
pub struct BootstrapOptions {
    /// Maximum time of a wait without progress. Default: 60 s.
    pub timeout: Duration,
    /// Counter that changes whenever this rank has completed some work. The other ranks wait for this rank until
    /// `timeout` after the last change. Default: the counter of [`ginlab_base::progress`].
    pub progress: &'static AtomicU64,
    /// Flag that ends every wait when it is set, for example by Ctrl-C. Default: the flag of [`ginlab_base::signals`].
    pub interrupt: &'static AtomicBool,
    /// Values that must be the same on all ranks (provider, rail list, options), by name. Compared at the start, in
    /// this order.
    pub fingerprint: Vec<(String, String)>,
    /// Interfaces of rank 0 that ranks on other hosts may try. Used only by `mpi`, since the other kinds receive an
    /// address. Names are separated by commas; `*` at the end of a name matches any suffix. `None` for all interfaces
    /// that are up.
    pub interfaces: Option<String>,
    /// Number of bytes of a rank's part that are sent in one step of a gather; longer parts take several steps.
    /// Default: 1 MiB. Reduced if the pieces of all ranks would not fit into one message. Ranks need not agree on it.
    pub piece_bytes: usize,
    /// Whether the job continues without ranks that do not connect, leave or fail, other than rank 0. Default: no.
    pub partial: bool,
}

impl Default for BootstrapOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(60);
        let interrupt = ginlab_base::signals::flag();
        let progress = ginlab_base::progress::counter();
        let (fingerprint, interfaces, piece_bytes, partial) = (Vec::new(), None, 1 << 20, false);
        BootstrapOptions { timeout, progress, interrupt, fingerprint, interfaces, piece_bytes, partial }
    }
}

/// This process's membership in a job of several ranks.
///
/// Close a successful job with [`Bootstrap::finish`]. If the value is dropped instead, this rank leaves the job: the
/// next call of every other rank fails, and the children of a `local` job are killed.
pub struct Bootstrap {
    kind: BootstrapKind,
    rank: usize,
    size: usize,
    /// This field is declared before the star, so that it is stopped before the star is dropped.
    reporter: Option<Reporter>,
    star: Arc<Mutex<Star>>,
    timeout: Duration,
    piece_bytes: usize,
    interrupt: &'static AtomicBool,
    members: Vec<Member>,
    /// Facts about the ranks that a reader of results needs.
    notes: Vec<String>,
    /// Whether the job continues without ranks that are missing.
    partial: bool,
    /// Numbers of the ranks at the start of the job.
    first_numbers: Vec<usize>,
    missing: Vec<MissingRank>,
    broken: Option<BootstrapError>,
    /// This field is declared last: connections are closed before MPI is finalized.
    #[cfg(feature = "mpi")]
    session: Option<mpi::Session>,
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bootstrap { kind, rank, size, members, broken, .. } = self;
        let mut out = f.debug_struct("Bootstrap");
        out.field("kind", kind).field("rank", rank).field("size", size);
        out.field("members", members).field("broken", broken).finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// Returns this process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the index of this process among the ranks of its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.on_this_host().iter().position(|rank| *rank == self.rank()).unwrap_or(0)
    }

    /// Returns the number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.on_this_host().len()
    }

    /// Returns whether all ranks run on one host, in one network namespace.
    pub fn same_host(&self) -> bool {
        self.local_size() == self.size()
    }

    /// Returns the host and process of each rank, by rank.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns facts about the ranks and their addresses that a reader of results needs, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the pairs of ranks that measure with each other. Partners are on different hosts if possible. The result
    /// is the same on every rank.
    pub fn pairing(&self) -> Pairing {
        let hosts: Vec<&str> = self.members.iter().map(|member| member.identity.as_str()).collect();
        Pairing::of(&hosts)
    }

    /// Returns the ranks on this rank's machine, in any network namespace, including this rank.
    pub fn on_this_machine(&self) -> Vec<usize> {
        let here = self.members[self.rank].machine();
        (0..self.size()).filter(|rank| self.members[*rank].machine() == here).collect()
    }

    /// Returns the ranks on this host: on this machine and in this network namespace.
    pub fn on_this_host(&self) -> Vec<usize> {
        let here = &self.members[self.rank].identity;
        (0..self.size()).filter(|rank| self.members[*rank].identity == *here).collect()
    }

    /// Returns the method by which the ranks found each other.
    pub fn kind(&self) -> BootstrapKind {
        self.kind
    }

    /// Sets the limit of later waits.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns the bytes of all ranks, by rank. `what` names the step in messages, and must be the same on all ranks. A
    /// rank's part may have up to 1 GiB. Long parts are sent in pieces, each within the timeout. For small typed values
    /// use [`Bootstrap::all_gather_values`].
    pub fn all_gather(&mut self, bytes: &[u8], what: &str) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.in_pieces(bytes, Spread::All, what)
    }

    /// Waits until all ranks have called this function.
    pub fn barrier(&mut self, what: &str) -> Result<(), BootstrapError> {
        self.all_gather(&[], what).map(drop)
    }

    /// Returns an error if a peer has reported an error, closed its connection or died. Does not wait. Rank 0 checks
    /// all ranks, the others check rank 0. Intended for loops that wait for another event, such as the end of a kernel.
    pub fn check_peers(&mut self) -> Result<(), BootstrapError> {
        self.guard(|star| star.look("a check of the peers"))
    }

    /// Compares values that must be the same on all ranks. All ranks return the same one-line error for the first
    /// difference.
    pub fn compare(&mut self, fingerprint: Vec<(String, String)>) -> Result<(), BootstrapError> {
        let mut all = self.all_gather(&greeting::json(&fingerprint), "comparison of options")?;
        if all.iter().all(|one| *one == all[0]) {
            all.truncate(1);
        }
        let parsed: Result<Vec<Vec<(String, String)>>, _> = all.iter().map(|one| serde_json::from_slice(one)).collect();
        let difference = match parsed {
            Ok(fingerprints) => detect::first_difference(&fingerprints),
            Err(error) => Some(BootstrapError::garbage("a rank", error)),
        };
        match difference {
            Some(error) => {
                // Every rank detects the difference independently, so no message is sent.
                self.broken = Some(error.clone());
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Reports to all ranks that this rank stops; `ending` is the kind of its end and `text` the reason. Waits of the
    /// other ranks fail with this text, and so do all later calls of this rank.
    pub fn abort(&mut self, ending: FailureKind, text: &str) {
        if self.broken.is_none() {
            let error = BootstrapError::Aborted { rank: self.rank, ending, text: text.to_owned() };
            self.spread(&error);
            self.broken = Some(error);
        }
    }

    /// Closes a successful job: runs a last barrier, waits until the children have exited, and finalizes MPI. Returns
    /// an error if a child failed. Every rank must call it.
    pub fn finish(mut self) -> Result<(), BootstrapError> {
        self.barrier("end")?;
        self.reporter = None;
        let mut star = lock(&self.star);
        star.leave();
        if let Some(children) = star.children.as_mut() {
            children.finish(self.timeout)?;
        }
        drop(star);
        #[cfg(feature = "mpi")]
        if let Some(session) = self.session.take() {
            session.finalize(self.timeout);
        }
        Ok(())
    }

    /// Runs `step`, or returns the first error of the job if it has failed. If the step fails, the job fails, and the
    /// other ranks are notified.
    fn guard<T>(&mut self, step: impl FnOnce(&mut Star) -> Result<T, BootstrapError>) -> Result<T, BootstrapError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let done = step(&mut lock(&self.star));
        done.inspect_err(|error| {
            self.spread(error);
            self.broken = Some(error.clone());
        })
    }
}
