//! `mpi`: mpirun or srun started the ranks. MPI provides rank and size and broadcasts rank 0's addresses. All further
//! communication uses the same star as the other kinds, because MPI's waits have no limit and do not name missing
//! ranks.
//!
//! Rank 0 creates the token of the job and sends it in the same broadcast, over MPI's transport. The token is
//! unencrypted if that transport is TCP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::request::StaticScope;
use ::mpi::traits::{Communicator, Root};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use serde::{Deserialize, Serialize};

use super::detect::{process_env, refuse_alone};
use super::error::{BootstrapError, FailureKind, human};
use super::identity::Member;
use super::star::Star;
use super::wait::Clock;
use super::{Bootstrap, BootstrapKind, BootstrapOptions, greeting, local, tcp};

/// Size of the broadcast. MPI requires all ranks to know it in advance.
const OFFER_BYTES: usize = 8192;

/// Polling interval of a pending broadcast.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Exit code of a process that is blocked in MPI beyond the time limit.
const TIMED_OUT: i32 = 124;

/// An initialized MPI. Dropping it does *not* finalize MPI: MPI_Finalize waits for all ranks, and a rank that has
/// failed must not wait. The launcher detects that a rank exited early and ends the job.
pub(super) struct Session(std::mem::ManuallyDrop<Universe>);

impl Session {
    /// Finalizes MPI together with all ranks.
    pub fn finalize(self, limit: Duration) {
        bounded("MPI_Finalize", limit, || drop(std::mem::ManuallyDrop::into_inner(self.0)));
    }
}

fn failed(text: impl std::fmt::Display) -> BootstrapError {
    BootstrapError::failed(format!("MPI: {text}"))
}

/// Addresses of rank 0. The broadcast contains either an offer, or the kind and the text of rank 0's error.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    identity: String,
    addresses: Vec<IpAddr>,
    port: u16,
    token: String,
}

impl Bootstrap {
    /// Obtains rank and size from MPI. Must be called at most once per process, from its main thread.
    pub fn mpi(options: BootstrapOptions) -> Result<Self, BootstrapError> {
        let clock = Clock::new(options.timeout, options.interrupt);
        let initialized =
            bounded("MPI_Init", options.timeout, || ::mpi::initialize_with_threading(Threading::Funneled));
        let Some((universe, _)) = initialized else {
            return Err(failed("it is already initialized; the mpi bootstrap can be opened only once per process"));
        };
        let session = Session(std::mem::ManuallyDrop::new(universe));
        let world = session.0.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        let mut opened = if size == 1 {
            if let Err(error) = refuse_alone(&process_env, BootstrapKind::Mpi) {
                // In a world of one rank MPI_Finalize waits for no other rank.
                session.finalize(options.timeout);
                return Err(error);
            }
            Bootstrap::centre(BootstrapKind::Mpi, Star::new(0, 1, None), None, options)?
        } else if rank == 0 {
            let prepared = listen(&options);
            let offer = prepared.as_ref().map(|(_, offer)| offer).map_err(|error| (error.ending(), error.to_string()));
            broadcast(&world, Some(greeting::json(&offer)), &clock)?;
            let (listener, Offer { token, .. }) = prepared?;
            Bootstrap::centre(BootstrapKind::Mpi, Star::new(0, size, None), Some((listener, &token)), options)?
        } else {
            let bytes = broadcast(&world, None, &clock)?;
            let offer: Result<Offer, (FailureKind, String)> = serde_json::from_slice(&bytes)
                .map_err(|error| failed(format_args!("rank 0's addresses are unreadable: {error}")))?;
            let offer = offer.map_err(|(ending, text)| BootstrapError::Aborted { rank: 0, ending, text })?;
            let candidates = candidates(&offer, &Member::here().identity);
            let master = candidates.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
            Bootstrap::leaf(
                BootstrapKind::Mpi,
                (rank, size),
                || Ok(candidates.clone()),
                &master,
                &offer.token,
                options,
            )?
        };
        opened.session = Some(session);
        Ok(opened)
    }
}

/// Returns the addresses at which to try rank 0. These are loopback for ranks of the same host and network namespace,
/// and otherwise all of rank 0's interfaces.
fn candidates(offer: &Offer, here: &str) -> Vec<SocketAddr> {
    if offer.identity == here {
        return vec![(Ipv4Addr::LOCALHOST, offer.port).into()];
    }
    offer.addresses.iter().map(|&address| (address, offer.port).into()).collect()
}

fn listen(options: &BootstrapOptions) -> Result<(TcpListener, Offer), BootstrapError> {
    let addresses = interfaces(options.interfaces.as_deref())?;
    // Listens on all interfaces: the hosts of the other ranks are not known yet, and ranks of this host use the
    // loopback.
    let listener = tcp::listen_on_all(0)?;
    let port = listener.local_addr().map_err(|e| BootstrapError::system("read the port of a socket", e))?.port();
    let offer = Offer { identity: Member::here().identity, addresses, port, token: local::random_token()? };
    Ok((listener, offer))
}

/// Returns the addresses of the interfaces that are up, IPv4 first, without loopback and link-local addresses.
fn interfaces(pattern: Option<&str>) -> Result<Vec<IpAddr>, BootstrapError> {
    let list = getifaddrs().map_err(|error| BootstrapError::system("list the network interfaces", error))?;
    let mut names: Vec<String> = Vec::new();
    let mut addresses = Vec::new();
    for interface in list {
        let flags = interface.flags;
        if !flags.contains(InterfaceFlags::IFF_UP) || flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let Some(storage) = interface.address else { continue };
        let address: IpAddr = match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
            (Some(v4), _) if !v4.ip().is_link_local() => v4.ip().into(),
            (_, Some(v6)) if !v6.ip().is_unicast_link_local() => v6.ip().into(),
            _ => continue,
        };
        if pattern.is_none_or(|pattern| matches(pattern, &interface.interface_name)) {
            addresses.push(address);
        }
        if !names.contains(&interface.interface_name) {
            names.push(interface.interface_name);
        }
    }
    addresses.sort_by_key(IpAddr::is_ipv6);
    match pattern {
        Some(pattern) if addresses.is_empty() => {
            let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let text = format!("no network interface matches {pattern:?}; this host has {available}");
            Err(BootstrapError::Interfaces(text))
        }
        _ => Ok(addresses),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.split(',').map(str::trim).any(|one| match one.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == one,
    })
}

/// Broadcasts rank 0's bytes. The broadcast is polled, so that it ends when the clock expires.
fn broadcast(world: &impl Communicator, mine: Option<Vec<u8>>, clock: &Clock) -> Result<Vec<u8>, BootstrapError> {
    let mut message = vec![0u8; OFFER_BYTES];
    if let Some(bytes) = mine {
        let Some(place) = message.get_mut(4..4 + bytes.len()) else {
            return Err(BootstrapError::Interfaces(format!(
                "this host's addresses need {} bytes, but at most {} fit; choose fewer interfaces",
                bytes.len(),
                OFFER_BYTES - 4
            )));
        };
        place.copy_from_slice(&bytes);
        message[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    }
    // Leaked, because MPI still owns the buffer of an abandoned broadcast.
    let root = world.process_at_rank(0);
    let mut request = root.immediate_broadcast_into(StaticScope, message.leak());
    loop {
        match request.test_with_data() {
            Ok((_, message)) => {
                let length = u32::from_le_bytes([message[0], message[1], message[2], message[3]]) as usize;
                let bytes = message.get(4..4 + length);
                return bytes.map(<[u8]>::to_vec).ok_or_else(|| failed("an incomplete broadcast"));
            }
            Err(pending) => request = pending,
        }
        if clock.interrupted() || clock.expired() {
            // A request that is dropped before it completes panics.
            std::mem::forget(request);
            let what = "MPI broadcast of rank 0's address";
            if clock.interrupted() {
                return Err(BootstrapError::Interrupted(what.to_owned()));
            }
            return Err(BootstrapError::timed_out(clock.timeout, &[0], &[world.rank() as usize], what, ""));
        }
        clock.pause(LOOK_EVERY);
    }
}

/// Runs an MPI call that cannot be interrupted. If it exceeds `limit`, prints a message and exits the process.
fn bounded<T>(what: &'static str, limit: Duration, call: impl FnOnce() -> T) -> T {
    let (done, waiting) = mpsc::channel::<()>();
    // Ignores a failure to start the thread: a job without this limit is better than no job.
    let _ = std::thread::Builder::new().name("mpi-watch".into()).spawn(move || {
        if let Err(mpsc::RecvTimeoutError::Timeout) = waiting.recv_timeout(limit) {
            eprintln!(
                "ginlab: timed out after {} in {what}: do all ranks run under the MPI that they were built with?",
                human(limit)
            );
            signal_hook::low_level::exit(TIMED_OUT);
        }
    });
    let result = call();
    drop(done);
    result
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn patterns_match_interface_names() {
        assert!(matches("eth0", "eth0") && !matches("eth0", "eth01"));
        assert!(matches("ens*, eth*", "eth7") && !matches("ens*,ib0", "eth0"));
    }

    #[test]
    fn unmatched_pattern_lists_interfaces() {
        let error = interfaces(Some("no-such*")).unwrap_err().to_string();
        assert!(error.starts_with("no network interface matches \"no-such*\"; this host has "), "{error}");
    }

    #[test]
    fn neighbours_use_loopback_only() {
        let offer =
            Offer { identity: "a".into(), addresses: vec!["10.99.0.1".parse().unwrap()], port: 7, token: "t".into() };
        assert_eq!(candidates(&offer, "a"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(candidates(&offer, "b"), ["10.99.0.1:7".parse().unwrap()]);
    }
}
