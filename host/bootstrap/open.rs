//! Opening of a job: from the environment, as rank 0, or as another rank.

use super::acceptor::Acceptor;
use super::connect::Search;
use super::frame::{self, FrameKind};
use super::greeting::{self, Hello};
use super::parts::Spread;
use super::progress::Reporter;
use super::star::Star;
use super::wait::Clock;
use super::{
    Bootstrap, BootstrapError, BootstrapKind, BootstrapOptions, Member, TcpSettings, detect, is_spawned_child,
    process_env, tcp,
};
use ginlab_base::limits;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

/// Maximum number of ranks. A larger number is taken for a typing error.
const MAX_SIZE: usize = 1 << 16;

impl Bootstrap {
    /// Opens the kind of bootstrap that the environment indicates ([`BootstrapKind::detect`]). `ranks` is the number of
    /// ranks of a `local` job (default 1). Under a launcher it may be `None`; otherwise it must equal the number of
    /// ranks of the launcher.
    pub fn auto(ranks: Option<usize>, options: BootstrapOptions) -> Result<Self, BootstrapError> {
        Bootstrap::open(BootstrapKind::asked_for(&process_env)?, ranks, options)
    }

    /// Like [`Bootstrap::auto`], but opens the given kind.
    pub fn open(kind: BootstrapKind, ranks: Option<usize>, options: BootstrapOptions) -> Result<Self, BootstrapError> {
        let mut opened = match kind {
            BootstrapKind::Local if is_spawned_child() => Bootstrap::child(options)?,
            BootstrapKind::Local => {
                detect::refuse_alone(&process_env, kind)?;
                Bootstrap::local(ranks.unwrap_or(1), options)?
            }
            BootstrapKind::Tcp => {
                let settings = TcpSettings::from_env(&process_env)?;
                if settings.size == 1 {
                    detect::refuse_alone(&process_env, kind)?;
                }
                Bootstrap::tcp(&settings, options)?
            }
            #[cfg(feature = "mpi")]
            BootstrapKind::Mpi => Bootstrap::mpi(options)?,
            #[cfg(not(feature = "mpi"))]
            BootstrapKind::Mpi => return Err(detect::no_mpi(&process_env)),
        };
        match ranks {
            Some(asked) if asked != opened.size() + opened.missing.len() => {
                let size = opened.size() + opened.missing.len();
                let error = BootstrapError::usage(format!(
                    "{asked} ranks were requested, but the {kind} bootstrap has {size}; omit the number, or start that \
                     many"
                ));
                opened.abort(error.ending(), &error.to_string());
                Err(error)
            }
            _ => Ok(opened),
        }
    }

    /// Creates a job of one rank, under any launcher, for programs without ranks.
    pub fn alone() -> Result<Self, BootstrapError> {
        Bootstrap::centre(BootstrapKind::Local, Star::new(0, 1, None), None, BootstrapOptions::default())
    }

    /// Creates rank 0 of a job whose other ranks obtain its address by other means. Accepts ranks 1 to `size - 1` on
    /// `listener`.
    pub fn serve(
        listener: TcpListener,
        size: usize,
        token: &str,
        options: BootstrapOptions,
    ) -> Result<Self, BootstrapError> {
        let star = Star::new(0, checked_size(size)?, None);
        Bootstrap::centre(BootstrapKind::Tcp, star, Some((listener, token)), options)
    }

    /// Joins a job at the first of `addresses` that answers with the right token.
    pub fn join(
        addresses: &[SocketAddr],
        rank: usize,
        size: usize,
        token: &str,
        options: BootstrapOptions,
    ) -> Result<Self, BootstrapError> {
        let shown = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
        Bootstrap::leaf(BootstrapKind::Tcp, (rank, size), || Ok(addresses.to_vec()), &shown, token, options)
    }

    pub(super) fn centre(
        kind: BootstrapKind,
        star: Star,
        listening: Option<(TcpListener, &str)>,
        options: BootstrapOptions,
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

    pub(super) fn leaf(
        kind: BootstrapKind,
        (rank, size): (usize, usize),
        candidates: impl Fn() -> Result<Vec<SocketAddr>, String>,
        master: &str,
        token: &str,
        options: BootstrapOptions,
    ) -> Result<Self, BootstrapError> {
        let clock = Clock::new(options.timeout, options.interrupt);
        let mut star = Star::new(rank, checked_size(size)?, None);
        let hello = greeting::json(&Hello { rank, size, member: Member::here() });
        let greeting = frame::encode(FrameKind::Hello, 0, "start", &hello);
        let search = Search { place: master, token: tcp::checked_token(token)?, greeting, rank: Some(rank) };
        let (mut link, member) = search.connect::<Member>(candidates, &clock)?;
        (link.member, link.longest) = (member.printable(), frame::MAX_BYTES);
        star.links[0] = Some(link);
        // Rank 0 has answered. The time spent on finding it must not reduce the time for the other ranks.
        let clock = Clock::new(options.timeout, options.interrupt);
        Bootstrap::start(kind, star, None, clock, options)
    }

    /// Runs the first steps of every job: all ranks exchange their [`Member`] and compare their options. Process IDs
    /// have their own step, so that the parts of the first one are equal on all ranks of a host.
    fn start(
        kind: BootstrapKind,
        mut star: Star,
        mut acceptor: Option<Acceptor>,
        mut clock: Clock,
        options: BootstrapOptions,
    ) -> Result<Self, BootstrapError> {
        let BootstrapOptions { timeout, progress, interrupt, fingerprint, piece_bytes, partial, .. } = options;
        star.progress.count_by(progress);
        star.partial = partial;
        let mut opened = Bootstrap {
            kind,
            rank: star.rank,
            size: star.size,
            first_numbers: (0..star.size).collect(),
            missing: Vec::new(),
            partial,
            reporter: None,
            star: Arc::new(Mutex::new(star)),
            timeout,
            piece_bytes,
            interrupt,
            members: Vec::new(),
            notes: Vec::new(),
            broken: None,
            #[cfg(feature = "mpi")]
            session: None,
        };
        let here = Member::here();
        let mine = greeting::json(&Member { pid: 0, ..here.clone() });
        let mut infos =
            opened.guard(|star| star.exchange(&mine, Spread::All, "start", &mut clock, acceptor.as_mut()))?;
        // All ranks have connected. Closes the port.
        drop(acceptor);
        let gone: Vec<bool> = infos.iter().map(|info| partial && info.is_empty()).collect();
        if gone.contains(&true) {
            opened.leave_out(&gone);
            infos.retain(|info| !info.is_empty());
        }
        for (rank, info) in infos.iter().enumerate() {
            let garbage = |error| BootstrapError::garbage(format_args!("rank {rank}"), error);
            let member = match opened.members.last() {
                Some(member) if infos[rank - 1] == *info => member.clone(),
                _ => serde_json::from_slice::<Member>(info).map_err(garbage)?,
            };
            opened.members.push(member);
        }
        // Four bytes on every rank, so that the parts have one length.
        let pids = opened.all_gather_values(&here.pid.to_le_bytes(), "process IDs")?;
        for (member, pid) in opened.members.iter_mut().zip(pids) {
            member.pid = u32::from_le_bytes(pid);
        }
        let mut options = vec![("ginlab version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        options.extend(fingerprint);
        opened.compare(options)?;
        if opened.size > 1 {
            opened.reporter = Some(Reporter::start(&opened.star, timeout));
        }
        Ok(opened)
    }
}

/// Returns an error if rank 0 cannot open a connection to each of the `size` ranks. Without this check, the connection
/// that exceeds the limit would be refused only after all others have connected.
pub(super) fn check_files(size: usize) -> Result<(), BootstrapError> {
    match limits::lacking_files(size as u64) {
        Some(why) => Err(BootstrapError::usage(format!("connections of {size} ranks: {why}"))),
        None => Ok(()),
    }
}

pub(super) fn checked_size(size: usize) -> Result<usize, BootstrapError> {
    if (1..=MAX_SIZE).contains(&size) {
        Ok(size)
    } else {
        Err(BootstrapError::BadSize { asked: size, limit: MAX_SIZE })
    }
}
