//! Connecting the ranks of a communicator: NCCL sends 128 bytes from each rank to all others, and ginlab's bootstrap
//! does the rest.

use crate::abi::HANDLE_BYTES;
use crate::coll::Coll;
use crate::copies::{Copies, NoCopies};
use crate::cuda::{CuContext, CudaCopies};
use crate::endpoint::{Driven, Endpoint, EndpointInfo};
use crate::mover::ByKernel;
use crate::mover::driver::OnGpu;
use crate::pool::WorkerSlot;
use crate::queues::Arena;
use crate::settings::Settings;
use crate::wire::{MOST_RANKS, ZoneLayout};
use ginlab_bootstrap::{Bootstrap, BootstrapOptions, random_token};
use ginlab_cuda::Device;
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::same_host::Stores;
use ginlab_fabric::{FabricError, Rail, RailPlan, RailVisitor};
use ginlab_proxy::choose_rails;
use ginlab_proxy::signal_order::unpolled;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: [u8; 8] = *b"ginlab01";
/// Maximum number of threads that copy the bytes of modelled cards, per communicator.
const MOST_MOVERS: usize = 2;
/// Maximum number of addresses in a handle.
const ADDRESSES: usize = 8;

/// Address and token with which other ranks find a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankHandle {
    port: u16,
    token: String,
    addresses: Vec<Ipv4Addr>,
}

impl RankHandle {
    fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut out = [0; HANDLE_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.port.to_le_bytes());
        out[10] = self.addresses.len().min(ADDRESSES) as u8;
        out[16..48].copy_from_slice(self.token.as_bytes());
        for (index, address) in self.addresses.iter().take(ADDRESSES).enumerate() {
            out[48 + index * 4..52 + index * 4].copy_from_slice(&address.octets());
        }
        out
    }

    fn decode(bytes: &[u8; HANDLE_BYTES]) -> Option<RankHandle> {
        let count = usize::from(bytes[10]);
        if bytes[..8] != MAGIC || count == 0 || count > ADDRESSES {
            return None;
        }
        let address = |index: usize| {
            let at = 48 + index * 4;
            Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
        };
        Some(RankHandle {
            port: u16::from_le_bytes([bytes[8], bytes[9]]),
            token: std::str::from_utf8(&bytes[16..48]).ok()?.to_owned(),
            addresses: (0..count).map(address).collect(),
        })
    }
}

/// Accepts the other ranks.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    handle: RankHandle,
    settings: Arc<Settings>,
}

/// Returns the addresses of this machine. The loopback is first, since its traffic does not leave the machine.
fn addresses() -> Vec<Ipv4Addr> {
    let mut found = vec![Ipv4Addr::LOCALHOST];
    if let Ok(all) = nix::ifaddrs::getifaddrs() {
        let of = |interface: nix::ifaddrs::InterfaceAddress| {
            interface.address.as_ref().and_then(|address| address.as_sockaddr_in()).map(|address| address.ip())
        };
        found.extend(all.filter_map(of).filter(|address| !address.is_loopback()));
    }
    found.truncate(ADDRESSES);
    found
}

impl Listener {
    /// Listens on all addresses, on a port that the system chooses.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(settings: Arc<Settings>) -> Result<Listener, String> {
        let failed = |error: std::io::Error| format!("cannot listen for other ranks: {error}");
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = random_token().map_err(|error| error.to_string())?;
        Ok(Listener { listener, handle: RankHandle { port, token, addresses: addresses() }, settings })
    }

    /// Returns the bytes that NCCL transports to the other ranks.
    pub fn handle(&self) -> [u8; HANDLE_BYTES] {
        self.handle.encode()
    }
}

/// A connected communicator.
pub struct Joined {
    /// State that NCCL's threads use.
    pub coll: Arc<Coll>,
    seat: WorkerSlot,
    key: u64,
}

impl Joined {
    /// Closes the communicator. Operations in progress have 1 s to complete.
    pub fn close(self) {
        self.seat.close(self.key, 3 * std::time::Duration::from_secs(1));
    }
}

type Opened = Result<(Box<dyn Driven>, EndpointInfo), String>;

/// Creates a rank's endpoint from its rails, on the thread that will own them.
struct Start {
    coll: Arc<Coll>,
    chosen: RailPlan,
    context: Option<CuContext>,
}

impl RailVisitor for Start {
    type Output = Box<dyn FnOnce() -> Opened + Send>;

    fn take<R: Rail + 'static>(
        self,
        open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
        _bare: Option<BareWrites<R>>,
    ) -> Self::Output {
        Box::new(move || {
            let Start { coll, chosen, context } = self;
            let copies: Box<dyn Copies> =
                match (crate::testing::copies(coll.settings.pretend_gpu.as_ref(), coll.settings.by_kernel)?, context) {
                    (Some(copies), _) => copies,
                    (None, Some(context)) => by_cuda(context, &coll)?,
                    (None, None) => Box::new(NoCopies),
                };
            let rails = open().map_err(|error| error.to_string())?;
            let (endpoint, info) = Endpoint::open(coll, rails, &chosen, copies)?;
            Ok((Box::new(endpoint) as Box<dyn Driven>, info))
        })
    }
}

/// Returns the copies for a GPU: with the copy engines and, if requested and possible, also with the kernel.
fn by_cuda(context: CuContext, coll: &Coll) -> Result<Box<dyn Copies>, String> {
    let engines = CudaCopies::open(context, coll.settings.stream_words)?;
    let Some(blocks) = coll.settings.by_kernel else { return Ok(Box::new(engines)) };
    match OnGpu::open(context, blocks) {
        Ok(kernel) => Ok(Box::new(ByKernel::new(engines, kernel))),
        Err(why) => {
            if coll.rank == 0 {
                eprintln!("ginlab: no copy kernel, only the copy engines copy: {why}");
            }
            Ok(Box::new(engines))
        }
    }
}

/// Connects the ranks using their handles: opens this rank's rails and makes those of the other ranks known to them.
///
/// # Errors
/// Returns a one-line error that names the missing rank, the difference, or what could not be opened.
pub fn join(handles: &[[u8; HANDLE_BYTES]], rank: usize, listener: &Listener) -> Result<Joined, String> {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let (ranks, settings) = (handles.len(), &listener.settings);
    let layout =
        ZoneLayout::of(ranks).ok_or_else(|| format!("{ranks} ranks: this plugin joins at most {MOST_RANKS}"))?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let first = RankHandle::decode(&handles[0])
        .ok_or("rank 0's handle is not from this plugin; check that all ranks load the same plugin")?;
    let fingerprint =
        vec![("GINLAB_RAILS".to_owned(), settings.rails_text()), ("slots".to_owned(), format!("{layout:?}"))];
    let options = BootstrapOptions { timeout: settings.timeout, fingerprint, ..BootstrapOptions::default() };
    let mut ranks = if rank == 0 {
        let listener = listener.listener.try_clone().map_err(|error| format!("cannot listen: {error}"))?;
        Bootstrap::serve(listener, ranks, &first.token, options)
    } else {
        let to: Vec<SocketAddr> =
            first.addresses.iter().map(|address| SocketAddr::new(IpAddr::V4(*address), first.port)).collect();
        Bootstrap::join(&to, rank, ranks, &first.token, options)
    }
    .map_err(|error| text(&error))?;
    let number = u64::from_str_radix(&first.token[..16], 16).unwrap_or_default();
    let context = CuContext::current();
    let arena = Arena::new(context, settings.pretend_gpu.is_some());
    let coll = Arc::new(Coll::new(rank, layout, number, settings.clone(), arena));
    let immediates = Some(unpolled(layout.ranks));
    let how = RailOptions { immediates, ..RailOptions::default() };
    let mut chosen = choose_rails(&settings.fabric, settings.rails, how, &mut ranks, &Device::Emulated)
        .map_err(|error| text(&error))?;
    // Number of threads that copy for modelled cards: the remaining cores, after one thread of the plugin and two of
    // NCCL per rank.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let movers = (cores / (4 * ranks.on_this_machine().len().max(1))).min(MOST_MOVERS);
    chosen.start_movers(movers, Stores::Streamed).map_err(|error| format!("cannot start copy threads: {error}"))?;
    let seat = WorkerSlot::take(rank, settings.threads)?;
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    let start = Start { coll: coll.clone(), chosen: chosen.clone(), context };
    // Distinguishes the communicators' rails like those of proxy threads, for the seeds of the worst-case network
    // model.
    let open = chosen.give(key as u16, start);
    let joined = Joined { coll, seat, key };
    match joined.meet(open, ranks) {
        Ok(()) => Ok(joined),
        Err(why) => {
            // The thread may serve other communicators, so only this one is removed.
            joined.close();
            Err(why)
        }
    }
}

impl Joined {
    /// Opens the rails and exchanges their addresses and memory keys with the other ranks.
    fn meet(&self, open: Box<dyn FnOnce() -> Opened + Send>, mut ranks: Bootstrap) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (key, patience) = (self.key, 2 * self.coll.settings.timeout);
        // A failure is also sent to the other ranks, since they wait for this rank.
        let info: Result<EndpointInfo, String> = self.seat.ask(patience, "opening rails", move |table| {
            let (driven, info) = open()?;
            table.add(key, driven);
            Ok(info)
        });
        let infos: Vec<Result<EndpointInfo, String>> =
            ranks.all_gather_values(&info, "addresses and memory keys").map_err(|error| text(&error))?;
        let mut all = Vec::with_capacity(infos.len());
        for (rank, info) in infos.into_iter().enumerate() {
            all.push(info.map_err(|why| format!("rank {rank}: {why}"))?);
        }
        ranks.check_addresses(all.iter().map(|(addresses, _)| &addresses[..])).map_err(|error| text(&error))?;
        if ranks.rank() == 0 {
            ranks.notes().iter().for_each(|note| eprintln!("ginlab: {note}"));
        }
        self.seat.ask(patience, "connecting rails", move |table| match table.get(key) {
            Some(driven) => {
                driven.record(false);
                driven.connect(&all)
            }
            None => Err("its rails are closed".into()),
        })?;
        ranks.finish().map_err(|error| text(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_nccl() {
        let settings = Settings::read(&|_| None).expect("no variables");
        let listener = Listener::open(Arc::new(settings)).expect("a port");
        let bytes = listener.handle();
        let handle = RankHandle::decode(&bytes).expect("ours");
        assert_eq!(handle, listener.handle);
        assert_eq!(handle.addresses[0], Ipv4Addr::LOCALHOST);
        assert_eq!(RankHandle::decode(&[0; HANDLE_BYTES]), None);
    }
}
