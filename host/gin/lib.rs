//! `gin` on the host: opens the ranks' symmetric heaps and the paths between them, and launches kernels that use them.
//!
//! ```no_run
//! use ginlab_bootstrap::Bootstrap;
//! use ginlab_gin::{Options, World};
//!
//! let mut ranks = Bootstrap::auto(Some(2), ginlab_bootstrap::Options::default())?;
//! let mut world = World::open(&mut ranks, &Options::default())?;
//! let numbers = world.alloc::<u64>(&mut ranks, 1024)?;
//! world.write(numbers, &[7; 1024])?;
//! // world.launch(&mut ranks, &KERNEL, grid, block, args)?;
//! world.close(&mut ranks)?;
//! ranks.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The kernels' half, with what each call promises, is [`kernels::gin`].

mod error;
mod heap;
mod life;
mod open;
mod series;

pub use error::GinError;
pub use ginlab_fabric::Fabric;
pub use kernels::gin::{Inbox, Plain, Program, Signal, Sym};
pub use series::HostPut;

use cuda_std::Kernel;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Choice, Device, DeviceError, Launch, OpenedMemory, wait_for};
use ginlab_fabric::libfabric::Level;
use ginlab_proxy::signal_order::Rule;
use ginlab_proxy::{Fault, ProxyError, ProxyGroup, Snapshot, device_timeout};
use ginlab_rails::strategy::Strategy;
use ginlab_rails::{Turn, drain};
use ginlab_sharing::{SAME_GPU, Sharing};
use ginlab_topology::cores::Pin;
use heap::{Space, clear};
use kernels::gin::{Report, TEAMS, USER_SIGNALS};
use kernels::ring::Status;
use life::Life;
use std::collections::BTreeSet;
use std::time::Duration;

/// By which way other PEs are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_path)]
pub enum Path {
    /// Where a PE is on this host (this network namespace) and its heap can be mapped, by loads and stores; by rails otherwise.
    #[default]
    Auto,
    /// By mapping alone, across the network namespaces of a machine too; an error where that cannot be.
    NvLink,
    /// By rails alone, but for oneself.
    Rails,
}

fn unknown_path(text: &str) -> String {
    format!("path {text:?} is none of auto, nvlink, rails")
}

/// How a world is opened. The same on every rank.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device of each rank.
    pub device: Choice,
    /// Bytes of a heap that programs may allocate.
    pub heap_bytes: u64,
    /// See [`Path`].
    pub path: Path,
    /// So many ranks with neighbouring numbers count as a machine of their own: between them there are rails alone, as between machines.
    /// For studies of several nodes on one machine.
    pub node_size: Option<usize>,
    /// What the rails are, where some are needed.
    pub fabric: Fabric,
    /// When a transfer of them counts as complete. Rules `own` and `drain` are right at [`Level::Delivery`] alone.
    pub level: Level,
    /// Cores of the proxy threads.
    pub pin: Pin,
    /// Rails of each proxy thread.
    pub rails: usize,
    /// How puts are laid over them.
    pub strategy: Strategy,
    /// How a put and its signal are kept in order on rails.
    pub rule: Rule,
    /// Proxy threads, each with a ring of its own.
    pub proxies: usize,
    /// Slots of a ring, a power of two.
    pub ring_slots: usize,
    /// Longest wait: of a call on the device, of a proxy without progress, of the ranks for each other.
    pub timeout: Duration,
    /// A fault for the proxies of this rank, for tests.
    pub fault: Option<Fault>,
    /// Signals do not wait for what their rule says, for tests.
    pub early_signals: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            device: Choice::Auto,
            heap_bytes: 64 << 20,
            path: Path::Auto,
            node_size: None,
            fabric: Fabric::default(),
            level: Level::Delivery,
            pin: Pin::Auto,
            rails: 1,
            strategy: Strategy::Auto { threshold: ginlab_rails::strategy::DEFAULT_AUTO_THRESHOLD },
            rule: Rule::Count,
            proxies: 1,
            ring_slots: ginlab_proxy::ring::DEFAULT_SLOTS,
            timeout: Duration::from_secs(30),
            fault: None,
            early_signals: false,
        }
    }
}

/// A rank's part of the job: device, heap, paths to all PEs. Calls that take the ranks are collective: every rank makes them, in the
/// same order.
///
/// [`close`](World::close) ends it in order. A world that is dropped without, as after an error, waits for nobody: its proxies stop, so
/// that puts of others to this PE fail there, and GPU memory that other PEs have mapped stays allocated until the process ends.
///
/// Fields are dropped in this order: the proxies let go of the memory before it is freed.
#[derive(Debug)]
pub struct World {
    group: Option<ProxyGroup>,
    opened: Vec<Option<OpenedMemory>>,
    heap: Buffer,
    /// Where it is.
    place: &'static str,
    space: Space,
    signals: u32,
    far: Buffer,
    /// What the description points to.
    _tables: [Buffer; 4],
    report: Buffer,
    abort: Buffer,
    device: Device,
    sharing: Sharing,
    description: kernels::gin::World,
    fabric: String,
    line_rate: Option<u64>,
    notes: Vec<String>,
    /// Other busy threads share this machine's cores with ours: whoever spins gives way.
    shares_core: bool,
}

/// A grid that runs.
#[derive(Debug)]
pub struct Running {
    launch: Launch,
    kernel: &'static str,
}

impl World {
    /// Opens the job: this rank's device and heap, the other ranks' heaps where they can be mapped, rails where not.
    ///
    /// # Errors
    /// What could not be opened and why; what ranks do not agree on.
    pub fn open(ranks: &mut Bootstrap, options: &Options) -> Result<World, GinError> {
        open::open(ranks, options)
    }

    /// This PE's number.
    pub fn my_pe(&self) -> u32 {
        self.description.me
    }

    /// The number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.description.pes
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rails' fabric as rows name it: `tcp`, `model:p5`. Where no PE is reached by rails, how they are reached: `nvlink`, `same-gpu`, or
    /// both joined by `+`; `memory` on the emulated device.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// How PE `pe` is reached: `self`, `nvlink`, `same-gpu` where it is on this PE's GPU and no link is crossed (both `memory` on the emulated
    /// device), or the fabric of the rails.
    pub fn path_to(&self, pe: u32) -> &str {
        match self.opened.get(pe as usize) {
            _ if pe == self.my_pe() => "self",
            Some(Some(_)) => mapping_name(&self.device, &self.sharing, pe as usize),
            _ => &self.fabric,
        }
    }

    /// Which PEs share a GPU, and how they run there.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Where the heap is: `device`, or `pinned` host memory where rails cannot reach the device's.
    pub fn memory(&self) -> &'static str {
        self.place
    }

    /// What a header should say.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The proxies' rails, for headers.
    pub fn rail_names(&self) -> Vec<String> {
        self.group.as_ref().map(|group| group.offer().rails.clone()).unwrap_or_default()
    }

    /// Cores of the proxy threads, for headers; nothing without rails.
    pub fn affinity(&self) -> Option<String> {
        self.group.as_ref().map(ProxyGroup::affinity)
    }

    /// Line rate of this rank's cards in bits per second, whichever proxies share them; `None` without rails, or where it is not known.
    pub fn line_rate(&self) -> Option<u64> {
        self.line_rate
    }

    /// The proxies' counters.
    ///
    /// # Errors
    /// When one has failed.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ProxyError> {
        self.group.as_ref().map_or(Ok(Vec::new()), ProxyGroup::snapshots)
    }

    /// Bytes of the heap that nothing is allocated in.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    // --- the heap ----------------------------------------------------------------------------------------------------

    /// A symmetric object of `len` values, zeroed. Every rank asks for the same, and no rank goes on before all have it.
    ///
    /// # Errors
    /// [`GinError::Usage`] when the heap has no room, or when ranks ask for different sizes: which, and what each asked for.
    pub fn alloc<T: Plain>(&mut self, ranks: &mut Bootstrap, len: u64) -> Result<Sym<T>, GinError> {
        let bytes = len.checked_mul(size_of::<T>() as u64);
        self.agree(ranks, "alloc", bytes.unwrap_or(u64::MAX))?;
        let offset = bytes.and_then(|bytes| self.space.take(bytes));
        let offset = offset.ok_or_else(|| {
            GinError::Usage(format!(
                "{len} values of {} B do not fit into the symmetric heap, which has {} B free in one piece: open the world with a \
                 larger heap",
                size_of::<T>(),
                self.space.largest()
            ))
        })?;
        clear(&self.heap, offset, len * size_of::<T>() as u64)?;
        // Nobody writes to an object that another rank is still clearing.
        ranks.barrier("a symmetric object")?;
        // SAFETY: the stretch has just been taken for it, and stretches begin at multiples of 256.
        Ok(unsafe { Sym::from_parts(offset, len) })
    }

    /// Gives an object back, once nobody uses it any more on any PE.
    ///
    /// # Errors
    /// [`GinError::Usage`] when it is no object that was allocated, or ranks free different ones.
    pub fn free<T: Plain>(&mut self, ranks: &mut Bootstrap, object: Sym<T>) -> Result<(), GinError> {
        self.agree(ranks, "free", object.offset())?;
        if self.space.give_back(object.offset()) {
            return Ok(());
        }
        Err(GinError::Usage(format!("{object:?} is not allocated: a slice of an object, or freed before")))
    }

    /// `count` signals side by side, 0 at first. They are not given back.
    ///
    /// # Errors
    /// [`GinError::Usage`] when there are no more, or ranks ask for different numbers.
    pub fn signals(&mut self, ranks: &mut Bootstrap, count: u32) -> Result<Signal, GinError> {
        self.agree(ranks, "signals", u64::from(count))?;
        let first = self.signals;
        let end = first.checked_add(count).filter(|end| *end <= USER_SIGNALS);
        let refused = || GinError::Usage(format!("{count} signals beside {first}: a world has {USER_SIGNALS}"));
        self.signals = end.ok_or_else(refused)?;
        Ok(Signal(first))
    }

    /// Room on every PE for messages of up to `bytes` from every PE.
    ///
    /// # Errors
    /// As [`alloc`](World::alloc) and [`signals`](World::signals).
    pub fn inbox(&mut self, ranks: &mut Bootstrap, bytes: u64) -> Result<Inbox, GinError> {
        let capacity = bytes.next_multiple_of(8).max(8);
        let pes = self.n_pes();
        let room = self.alloc::<u8>(ranks, Inbox::bytes(capacity, pes))?;
        Ok(Inbox { offset: room.offset(), capacity, signals: self.signals(ranks, pes)? })
    }

    /// Copies values into this PE's part of an object, which no kernel and no put uses meanwhile.
    ///
    /// # Errors
    /// [`GinError::Usage`] for more values than it has; the driver's.
    pub fn write<T: Plain>(&self, object: Sym<T>, values: &[T]) -> Result<(), GinError> {
        if values.len() as u64 > object.len() {
            return Err(GinError::Usage(format!("{} values into {object:?}", values.len())));
        }
        // SAFETY: values of this trait have no padding: they are bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Ok(self.heap.write(object.offset() as usize, bytes)?)
    }

    /// This PE's part of an object, which no kernel and no put writes meanwhile.
    ///
    /// # Errors
    /// The driver's.
    pub fn read<T: Plain>(&self, object: Sym<T>) -> Result<Vec<T>, GinError> {
        let len = object.len() as usize;
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the vector has room for so many bytes, zeroed first; every pattern of bytes is a value of this trait.
        unsafe {
            let (first, bytes) = (values.as_mut_ptr().cast::<u8>(), len * size_of::<T>());
            first.write_bytes(0, bytes);
            self.heap.read(object.offset() as usize, std::slice::from_raw_parts_mut(first, bytes))?;
            values.set_len(len);
        }
        Ok(values)
    }

    /// This PE's signal now, as the CPU sees it: what kernels and other PEs have added.
    ///
    /// # Errors
    /// The driver's.
    pub fn signal(&self, signal: Signal) -> Result<u64, GinError> {
        let (mut near, mut far) = ([0u64; 1], [0u64; 1]);
        self.heap.read(signal.0 as usize * 8, &mut near)?;
        self.far.read(signal.0 as usize * 8, &mut far)?;
        Ok(near[0] + far[0])
    }

    /// Waits until all ranks are here. Their kernels have ended by then; puts that no kernel has waited for may still be under way.
    ///
    /// # Errors
    /// Who is missing; that of a proxy that has failed, also where no kernel has waited for it since.
    pub fn barrier(&mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        // Proxies answer in order: behind what their kernels had them do.
        self.snapshots()?;
        Ok(ranks.barrier("a barrier of the world")?)
    }

    /// Refuses what ranks do not agree on; every rank gets the same line.
    fn agree(&mut self, ranks: &mut Bootstrap, call: &str, what: u64) -> Result<(), GinError> {
        let all = ranks.all_gather_values(&(call.to_owned(), what), call)?;
        let mine = &all[0];
        match all.iter().position(|theirs| theirs != mine) {
            None => Ok(()),
            Some(rank) => Err(GinError::Usage(format!(
                "ranks do not agree: rank 0 calls {}({}), rank {rank} calls {}({})",
                mine.0, mine.1, all[rank].0, all[rank].1
            ))),
        }
    }

    // --- kernels -----------------------------------------------------------------------------------------------------

    /// What kernels know of the job, for arguments of another shape than [`Program`].
    pub fn description(&self) -> kernels::gin::World {
        self.description
    }

    /// Runs a kernel on this PE and waits for its end. Not collective by itself; kernels that wait for each other are launched by all.
    ///
    /// # Safety
    /// The kernel's own contract for `args`.
    ///
    /// # Errors
    /// A grid that the device cannot hold as a whole, beside those of the other PEs on it, of a kernel whose blocks wait (`#[kernel(resident)]`); no end and
    /// no sign of life for longer than the kernel's own waits last; [`GinError::Call`] with the first call that failed: block, call, PE
    /// and reason; what ended a peer or a proxy.
    pub unsafe fn launch<A>(
        &mut self,
        ranks: &mut Bootstrap,
        kernel: &Kernel<Program<A>>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<(), GinError>
    where
        A: Copy + Send + Sync + 'static,
    {
        // SAFETY: the caller's contract.
        let running = unsafe { self.start(kernel, grid, block, args) }?;
        self.wait(ranks, running)
    }

    /// As [`launch`](World::launch), without waiting: [`wait`](World::wait) does.
    ///
    /// # Safety
    /// As [`launch`](World::launch), until the wait has ended.
    ///
    /// # Errors
    /// When the device refuses the launch.
    pub unsafe fn start<A>(
        &mut self,
        kernel: &Kernel<Program<A>>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<Running, GinError>
    where
        A: Copy + Send + Sync + 'static,
    {
        self.prepare()?;
        let program = Program { world: self.description, args };
        // SAFETY: what the world points to lives as long as it, and `wait` or the drop of the launch comes first; the rest is the caller's.
        let launch = unsafe { self.device.launch(kernel, grid, block, program) }?;
        Ok(Running { launch, kernel: kernel.name() })
    }

    /// Waits for a kernel's end. Looks for peers and proxies that have gone and for Ctrl-C meanwhile, which end the kernel's waits: whoever
    /// waits for a signal does not look at its ring.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn wait(&mut self, ranks: &mut Bootstrap, running: Running) -> Result<(), GinError> {
        let Running { mut launch, kernel } = running;
        self.wait_until(ranks, kernel, || launch.is_done())
    }

    /// Makes ready for kernels that the caller appends to streams of its own, with the [`description`](World::description).
    ///
    /// # Errors
    /// The driver's.
    pub fn prepare(&self) -> Result<(), GinError> {
        Ok(self.report.write(0, &[0u64; size_of::<Report>() / 8])?)
    }

    /// As [`wait`](World::wait), for such work: `done` says whether it has ended.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn wait_until(
        &mut self,
        ranks: &mut Bootstrap,
        kernel: &'static str,
        done: impl FnMut() -> Result<bool, DeviceError>,
    ) -> Result<(), GinError> {
        let (mut life, mut told) = (Life::new(), false);
        let watch = || {
            self.look_around(ranks)?;
            // Other blocks, and grids behind this one, would each wait to their own deadline.
            if !told && self.has_reported()? {
                told = true;
                self.abort.write(0, &[Status::ENDED.0])?;
            }
            self.check_life(&mut life, kernel)
        };
        let ended = wait_for(Launch::ENDING.min(self.host_limit()), done, watch);
        ended.and(self.reported(kernel))
    }

    /// Whether a call of a kernel has failed.
    fn has_reported(&self) -> Result<bool, GinError> {
        let mut stop = [0u64];
        self.report.read(0, &mut stop)?;
        Ok(stop[0] != 0)
    }

    /// The first failure of the last launch.
    fn reported(&self, kernel: &'static str) -> Result<(), GinError> {
        let mut words = [0u64; size_of::<Report>() / 8];
        self.report.read(0, &mut words)?;
        if words[0] == 0 {
            return Ok(());
        }
        let failure = || self.group.as_ref().and_then(|group| group.failures().next());
        let mut proxy = failure();
        if Status(words[0]) == Status::STOPPED {
            // The kernels are told first; the thread itself ends when what it has posted has drained.
            drain(device_timeout(Duration::ZERO), || {
                proxy = failure();
                if proxy.is_some() { Turn::Empty } else { Turn::Idle }
            });
        }
        let rings = self.group.as_ref().map(ProxyGroup::ring_states).unwrap_or_default();
        Err(error::call(kernel, &words, self.pes_of(words[2]), proxy, rings))
    }

    /// The PE of a report, and how it is reached.
    fn pes_of(&self, number: u64) -> Option<(u32, String)> {
        let pe = u32::try_from(number.checked_sub(1)?).ok()?;
        Some((pe, self.path_to(pe).to_owned()))
    }

    /// Closes the job in order: no PE unmaps or frees what another one may still use.
    ///
    /// # Errors
    /// Who is missing.
    pub fn close(mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        self.barrier(ranks)?;
        self.group = None;
        self.opened.clear();
        // A heap is freed once nobody has it mapped; without this barrier it is not.
        self.barrier(ranks)?;
        self.heap.lend(false);
        Ok(())
    }
}

/// What a mapped heap of another PE is reached by.
fn mapping_name(device: &Device, sharing: &Sharing, pe: usize) -> &'static str {
    match device {
        Device::Emulated => "memory",
        Device::Gpu(_) if sharing.here().contains(&pe) => SAME_GPU,
        Device::Gpu(_) => "nvlink",
    }
}

/// All that the mapped PEs are reached by, each once.
fn mapping_names(device: &Device, sharing: &Sharing, mapped: impl Iterator<Item = usize>) -> String {
    let mut names: BTreeSet<&str> = mapped.map(|pe| mapping_name(device, sharing, pe)).collect();
    if names.is_empty() {
        names.insert(if matches!(device, Device::Emulated) { "memory" } else { "self" });
    }
    names.into_iter().rev().collect::<Vec<_>>().join("+")
}

/// Barriers' counters: one word for each team.
const BARRIER_BYTES: usize = TEAMS * 8;
