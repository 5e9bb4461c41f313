//! Ranks: who takes part in a job, and how they agree before any fabric is open.
//!
//! There is one mechanism, a TCP star with rank 0 at its centre ([`Bootstrap`]), and three ways to find it: `local` (this
//! program starts copies of itself), `tcp` (a launcher set RANK, WORLD_SIZE and MASTER_ADDR, or is SkyPilot) and `mpi`
//! (mpirun or srun; MPI only spreads rank 0's address). So in every kind all waits are bounded, end on Ctrl-C, and name who
//! is missing. All ranks make the same calls in the same order; a rank that does not is named, with both labels.
//!
//! The first error is final: it is told to the other ranks, and every later call answers it again.
//!
//! ```no_run
//! use ginlab_bootstrap::{Bootstrap, Options};
//!
//! let mut ranks = Bootstrap::auto(Some(2), Options::default())?;
//! let pids = ranks.all_gather(std::process::id().to_string().as_bytes(), "pids")?;
//! assert_eq!(pids.len(), ranks.size());
//! ranks.finish()?;
//! # Ok::<(), ginlab_bootstrap::BootstrapError>(())
//! ```

mod acceptor;
mod children;
mod connect;
mod detect;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzzed;
mod greeting;
mod handshake;
mod identity;
mod link;
mod local;
#[cfg(test)]
mod middle;
#[cfg(feature = "mpi")]
mod mpi;
mod seal;
pub mod session;
mod star;
mod tcp;
mod values;
mod wait;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use detect::{Kind, Launcher, process_env};
pub use error::{BootstrapError, Ending};
pub use identity::Member;
pub use local::{is_spawned_child, random_token};
pub use tcp::{TcpSettings, token_for};

use acceptor::Acceptor;
use connect::Search;
use frame::FrameKind;
use ginlab_base::pairing::Pairing;
use greeting::Hello;
use star::Star;
use wait::Clock;

/// More ranks than this are a mistyped number.
const MAX_SIZE: usize = 1 << 16;

/// What the MPI library calls itself; `None` in a build without the feature `mpi`.
pub fn mpi_version() -> Option<String> {
    #[cfg(feature = "mpi")]
    // It may be asked before MPI_Init. Some libraries answer with several lines, or with the NUL that ends a C string.
    return ::mpi::environment::library_version().ok().and_then(|text| {
        let line = text.lines().next()?.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        Some(line.to_owned())
    });
    #[cfg(not(feature = "mpi"))]
    None
}

/// What does not depend on the kind of bootstrap.
#[derive(Clone, Debug)]
pub struct Options {
    /// The limit of every wait; 60 s by default.
    pub timeout: Duration,
    /// Raised by Ctrl-C: every wait ends then. By default the flag of [`ginlab_base::signals`].
    pub interrupt: &'static AtomicBool,
    /// What must be the same on all ranks: provider, rail list, options. Compared at the start, in this order.
    pub fingerprint: Vec<(String, String)>,
    /// Which of rank 0's interfaces the other hosts may try (`mpi` only; the other kinds are told an address): names
    /// separated by commas, `*` at the end of a name for any rest. All that are up by default.
    pub interfaces: Option<String>,
    /// Bytes of a rank's part that travel in one step of a gather; longer parts take several steps. 1 MiB by default, and less
    /// where many ranks would not fit into one message. Ranks need not agree on it.
    pub piece_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        let timeout = Duration::from_secs(60);
        let interrupt = ginlab_base::signals::flag();
        Options { timeout, interrupt, fingerprint: Vec::new(), interfaces: None, piece_bytes: 1 << 20 }
    }
}

/// This process's place among the ranks of the job.
///
/// End a job that went well with [`Bootstrap::finish`]. Dropping it instead means that this rank leaves: the others are
/// told so by their next call, and children of a `local` job are ended.
pub struct Bootstrap {
    kind: Kind,
    star: Star,
    timeout: Duration,
    piece_bytes: usize,
    interrupt: &'static AtomicBool,
    members: Vec<Member>,
    broken: Option<BootstrapError>,
    /// Declared last: connections close before MPI is left.
    #[cfg(feature = "mpi")]
    session: Option<mpi::Session>,
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bootstrap { kind, star, members, broken, .. } = self;
        let mut out = f.debug_struct("Bootstrap");
        out.field("kind", kind).field("rank", &star.rank).field("size", &star.size);
        out.field("members", members).field("broken", broken).finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// Opens the kind that the environment asks for ([`Kind::detect`]). `ranks` is how many ranks a `local` job has
    /// (default 1); under a launcher it may be left out, and must be right otherwise.
    pub fn auto(ranks: Option<usize>, options: Options) -> Result<Self, BootstrapError> {
        Bootstrap::open(Kind::detect(&process_env), ranks, options)
    }

    /// Opens the given kind; see [`Bootstrap::auto`].
    pub fn open(kind: Kind, ranks: Option<usize>, options: Options) -> Result<Self, BootstrapError> {
        let mut opened = match kind {
            Kind::Local if is_spawned_child() => Bootstrap::child(options)?,
            Kind::Local => {
                detect::refuse_alone(&process_env, kind)?;
                Bootstrap::local(ranks.unwrap_or(1), options)?
            }
            Kind::Tcp => {
                let settings = TcpSettings::from_env(&process_env)?;
                if settings.size == 1 {
                    detect::refuse_alone(&process_env, kind)?;
                }
                Bootstrap::tcp(&settings, options)?
            }
            #[cfg(feature = "mpi")]
            Kind::Mpi => Bootstrap::mpi(options)?,
            #[cfg(not(feature = "mpi"))]
            Kind::Mpi => return Err(detect::no_mpi(&process_env)),
        };
        match ranks {
            Some(asked) if asked != opened.size() => {
                let size = opened.size();
                let error = BootstrapError::usage(format!(
                    "{asked} ranks were asked for, but the {kind} bootstrap has {size}; leave the number out, or start that many"
                ));
                opened.abort(error.ending(), &error.to_string());
                Err(error)
            }
            _ => Ok(opened),
        }
    }

    /// A world of one, whatever the launcher: for programs without ranks.
    pub fn alone() -> Result<Self, BootstrapError> {
        Bootstrap::centre(Kind::Local, Star::new(0, 1, None), None, Options::default())
    }

    /// Becomes rank 0 of a job that knows its address by other means: accepts ranks 1 to `size - 1` on the listener.
    pub fn serve(listener: TcpListener, size: usize, token: &str, options: Options) -> Result<Self, BootstrapError> {
        let star = Star::new(0, checked_size(size)?, None);
        Bootstrap::centre(Kind::Tcp, star, Some((listener, token)), options)
    }

    /// Joins rank 0 at the first of the addresses that answers with the right token.
    pub fn join(
        addresses: &[SocketAddr],
        rank: usize,
        size: usize,
        token: &str,
        options: Options,
    ) -> Result<Self, BootstrapError> {
        let shown = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        Bootstrap::leaf(Kind::Tcp, (rank, size), || Ok(addresses.to_vec()), &shown, token, options)
    }

    fn centre(
        kind: Kind,
        star: Star,
        listening: Option<(TcpListener, &str)>,
        options: Options,
    ) -> Result<Self, BootstrapError> {
        let clock = Clock::new(options.timeout, options.interrupt);
        let acceptor = match listening {
            Some((listener, token)) if star.size > 1 => {
                Some(Acceptor::new(listener, tcp::checked_token(token)?, star.size)?)
            }
            _ => None,
        };
        Bootstrap::start(kind, star, acceptor, clock, options)
    }

    fn leaf(
        kind: Kind,
        (rank, size): (usize, usize),
        candidates: impl Fn() -> Result<Vec<SocketAddr>, String>,
        master: &str,
        token: &str,
        options: Options,
    ) -> Result<Self, BootstrapError> {
        let clock = Clock::new(options.timeout, options.interrupt);
        let mut star = Star::new(rank, checked_size(size)?, None);
        let hello = greeting::json(&Hello { rank, size, member: Member::here() });
        let greeting = frame::encode(FrameKind::Hello, 0, "start", &hello);
        let search = Search { place: master, token: tcp::checked_token(token)?, greeting, rank: Some(rank) };
        let (mut link, member) = search.connect::<Member>(candidates, &clock)?;
        (link.member, link.longest) = (member.printable(), frame::MAX_BYTES);
        star.links[0] = Some(link);
        // Rank 0 is there: the time spent on finding it does not count against the other ranks.
        let clock = Clock::new(options.timeout, options.interrupt);
        Bootstrap::start(kind, star, None, clock, options)
    }

    /// The first step of every job: everybody tells who he is and with what options he was started.
    fn start(
        kind: Kind,
        star: Star,
        mut acceptor: Option<Acceptor>,
        mut clock: Clock,
        options: Options,
    ) -> Result<Self, BootstrapError> {
        let Options { timeout, interrupt, fingerprint, piece_bytes, .. } = options;
        let mut opened = Bootstrap {
            kind,
            star,
            timeout,
            piece_bytes,
            interrupt,
            members: Vec::new(),
            broken: None,
            #[cfg(feature = "mpi")]
            session: None,
        };
        let mine = greeting::json(&Member::here());
        let infos = opened.guard(|star| star.exchange(&mine, usize::MAX, "start", &mut clock, acceptor.as_mut()))?;
        // Nobody is expected any more: the port closes.
        drop(acceptor);
        for (rank, info) in infos.iter().enumerate() {
            let garbage = |error| BootstrapError::garbage(format_args!("rank {rank}"), error);
            opened.members.push(serde_json::from_slice::<Member>(info).map_err(garbage)?);
        }
        let mut options = vec![("ginlab version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        options.extend(fingerprint);
        opened.compare(options)?;
        Ok(opened)
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.star.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.star.size
    }

    /// This process's place among the ranks of its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.on_this_host().iter().position(|rank| *rank == self.rank()).unwrap_or(0)
    }

    /// The number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.on_this_host().len()
    }

    /// Whether all ranks run on one host, in one network namespace.
    pub fn same_host(&self) -> bool {
        self.local_size() == self.size()
    }

    /// Where the ranks run, by rank.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Who measures with whom: across hosts wherever that can be. The same on every rank.
    pub fn pairing(&self) -> Pairing {
        let hosts: Vec<&str> = self.members.iter().map(|member| member.identity.as_str()).collect();
        Pairing::of(&hosts)
    }

    /// Ranks that share this rank's machine, in whatever network namespace, by number; this one too.
    pub fn on_this_machine(&self) -> Vec<usize> {
        let here = self.members[self.star.rank].machine();
        (0..self.size()).filter(|rank| self.members[*rank].machine() == here).collect()
    }

    /// The ranks on this host: on this machine, and in this network namespace.
    pub fn on_this_host(&self) -> Vec<usize> {
        let here = &self.members[self.star.rank].identity;
        (0..self.size()).filter(|rank| self.members[*rank].identity == *here).collect()
    }

    /// How the ranks found each other.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Changes the limit of later waits.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// All ranks' bytes, by rank. `what` names the step for people; it must be the same on all ranks. A rank's part may have
    /// 1 GiB; long parts travel in pieces, each within the timeout. Small ones are typed by [`Bootstrap::all_gather_values`].
    pub fn all_gather(&mut self, bytes: &[u8], what: &str) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.in_pieces(bytes, usize::MAX, what)
    }

    /// Waits until all ranks are here.
    pub fn barrier(&mut self, what: &str) -> Result<(), BootstrapError> {
        self.all_gather(&[], what).map(drop)
    }

    /// Without waiting: has a peer reported an error, closed its connection or died? Rank 0 sees all ranks, the others see
    /// rank 0. For loops that wait for something else, such as a kernel.
    pub fn check_peers(&mut self) -> Result<(), BootstrapError> {
        self.guard(|star| star.look("a check of the peers"))
    }

    /// Compares what must be the same on all ranks. All ranks get the same one-line error for the first difference.
    pub fn compare(&mut self, fingerprint: Vec<(String, String)>) -> Result<(), BootstrapError> {
        let all = self.all_gather(&greeting::json(&fingerprint), "comparison of options")?;
        let parsed: Result<Vec<Vec<(String, String)>>, _> = all.iter().map(|one| serde_json::from_slice(one)).collect();
        let difference = match parsed {
            Ok(fingerprints) => detect::first_difference(&fingerprints),
            Err(error) => Some(BootstrapError::garbage("a rank", error)),
        };
        match difference {
            Some(error) => {
                // Every rank finds it by itself: nobody needs to be told.
                self.broken = Some(error.clone());
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Tells all ranks that this one stops, in what way, and why. Their waits end with this text; so do all later calls here.
    pub fn abort(&mut self, ending: Ending, text: &str) {
        if self.broken.is_none() {
            let error = BootstrapError::Aborted { rank: self.star.rank, ending, text: text.to_owned() };
            self.spread(&error);
            self.broken = Some(error);
        }
    }

    /// Ends a job that went well: a last barrier, then children are awaited (a failed one is an error) and MPI is left in
    /// order. Every rank calls it.
    pub fn finish(mut self) -> Result<(), BootstrapError> {
        self.barrier("end")?;
        self.star.leave();
        if let Some(children) = self.star.children.as_mut() {
            children.finish(self.timeout)?;
        }
        #[cfg(feature = "mpi")]
        if let Some(session) = self.session.take() {
            session.finalize(self.timeout);
        }
        Ok(())
    }

    /// Runs a step unless the job is broken, and breaks the job when the step fails.
    fn guard<T>(&mut self, step: impl FnOnce(&mut Star) -> Result<T, BootstrapError>) -> Result<T, BootstrapError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        step(&mut self.star).inspect_err(|error| {
            self.spread(error);
            self.broken = Some(error.clone());
        })
    }

    fn spread(&mut self, error: &BootstrapError) {
        let me = self.star.rank;
        match error {
            // What came from rank 0 is known there; what came from another rank goes on to the rest.
            BootstrapError::Aborted { rank, ending, text } if me == 0 || *rank == me => {
                self.star.last_words(*rank, *ending, text)
            }
            BootstrapError::Aborted { .. } => {}
            BootstrapError::Left { rank: 0, .. } => {}
            other => self.star.last_words(me, other.ending(), &other.to_string()),
        }
    }
}

fn checked_size(size: usize) -> Result<usize, BootstrapError> {
    if (1..=MAX_SIZE).contains(&size) {
        Ok(size)
    } else {
        Err(BootstrapError::BadSize { asked: size, limit: MAX_SIZE })
    }
}
