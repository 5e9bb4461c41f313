//! The libfabric rail: posting and polling.

mod messages;

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use ginlab_base::shm_cleanup;
use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::{Slot, SlotOperation};
use super::errors::{self, FailedOperation};
use super::info::{self, InfoList, ProviderRequirements};
use super::objects::Core;
use super::post::{Quirks, operation};
use super::sockets::Sockets;
use super::{GpuMemory, Level, LibfabricRegion, RailOptions};
use crate::domain::Domain;
use crate::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake};

/// Maximum number of completions read by one call.
pub(super) const BATCH: usize = 64;
/// Maximum size of an address. Addresses have 16 to 64 bytes; those of shm are names.
const ADDRESS_BYTES: usize = 512;

/// One endpoint on one domain of a libfabric provider.
///
/// Memory of CUDA devices uses the FI_HMEM interface (fi_mr_regattr with FI_HMEM_CUDA). It has not been run, for lack
/// of a machine whose libfabric supports it. Tests check that an unsupported registration fails with a clear error.
/// With a test double of libfabric they also check that a provider that would copy with CUDA calls is detected.
pub struct LibfabricRail {
    // Pointers and credit first: the hot path uses nothing else.
    pub(super) endpoint: *mut sys::fid_ep,
    pub(super) queue: *mut sys::fid_cq,
    /// Slots without an operation, whose number is the credit. The slots are used last in, first out, so that the few
    /// slots in use stay in the cache.
    pub(super) free: Vec<*mut Slot>,
    pub(super) peers: Vec<sys::fi_addr_t>,
    sockets: Sockets,
    pub(super) limits: RailLimits,
    pub(super) level: Level,
    pub(super) quirks: Quirks,
    slots: usize,
    /// Whether a bare loop failed and the provider may still hold its contexts.
    pub(super) bare_outstanding: bool,
    pub(super) name: String,
    pub(super) entries: Box<[sys::fi_cq_data_entry; BATCH]>,
    /// Contexts of receives for immediates that are not posted.
    pub(super) unposted: Vec<*mut c_void>,
    /// An error that followed completions in the same poll. Returned by the next poll.
    pub(super) late_error: Option<Box<FabricError>>,
    gpu_memory: GpuMemory,
    pub(super) core: Arc<Core>,
}

// SAFETY: the pointers belong to `core`, whose objects are not bound to a thread; `&mut self` prevents overlapping
// calls.
unsafe impl Send for LibfabricRail {}

impl std::fmt::Debug for LibfabricRail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibfabricRail").field("name", &self.name).field("limits", &self.limits).finish()
    }
}

impl Drop for LibfabricRail {
    fn drop(&mut self) {
        self.core.close_endpoint();
    }
}

impl LibfabricRail {
    /// Opens a rail on a domain that [`crate::discover`] found.
    pub fn open(domain: &Domain, options: &RailOptions) -> Result<Self, FabricError> {
        let name = format!("{}:{}", domain.provider, domain.name);
        let info = choose_info(domain, options)?;
        let immediates = options.immediates.unwrap_or(super::IMMEDIATES);
        let mut core = Core::open(&name, info, immediates)?;
        if let GpuMemory::ByCudaCalls(_) = core.gpu_memory {
            // Reopen as a rail for host memory. Merely requesting GPU memory has a cost, for example that efa disables
            // its shared memory.
            let plain = choose_info(domain, &RailOptions { cuda_memory: false, ..options.clone() })?;
            let refused = core.gpu_memory.clone();
            drop(core);
            core = Core::open(&name, plain, immediates)?;
            core.gpu_memory = refused;
        }
        Self::over(name, core, options)
    }

    /// Creates the rail from open objects.
    pub(super) fn over(name: String, core: Core, options: &RailOptions) -> Result<Self, FabricError> {
        let core = Arc::new(core);
        let entry = core.info.first();
        let mut free: Vec<_> = core.contexts.transfers.iter().rev().collect();
        if let Some(most) = options.max_outstanding {
            free.truncate(most.max(1));
        }
        let limits = RailLimits {
            max_transfer_bytes: max_transfer_bytes(&core),
            max_outstanding: free.len(),
            immediate_bytes: entry.domain().cq_data_size,
            link_bits_per_second: entry.link_bits_per_second(),
            cuda_memory: core.gpu_memory == GpuMemory::ByCard,
        };
        let mut rail = Self {
            endpoint: core.endpoint(),
            queue: core.queue.as_ptr(),
            slots: free.len(),
            bare_outstanding: false,
            free,
            peers: Vec::new(),
            limits,
            level: options.level,
            quirks: Quirks::of(&core, options.level),
            sockets: Sockets::new(name.split(':').next().unwrap_or_default()),
            name,
            entries: Box::new([sys::fi_cq_data_entry::default(); BATCH]),
            unposted: core.contexts.receives.iter().map(|slot| slot.cast()).collect(),
            late_error: None,
            gpu_memory: core.gpu_memory.clone(),
            core,
        };
        rail.post_receives()?;
        if rail.name.starts_with("efa") {
            shm_cleanup::record_endpoints();
        }
        Ok(rail)
    }

    /// Returns the number of transfers that are posted and not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Returns the completion level with which the rail was opened.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Checks that the NIC of a domain can access this GPU memory: opens a rail that makes no CUDA call, and registers
    /// the memory with it.
    ///
    /// # Errors
    /// Returns the reason why the NIC cannot access it, or is not known to.
    ///
    /// # Safety
    /// The memory must be valid until the function returns.
    pub unsafe fn prove_gpu(domain: &Domain, options: &RailOptions, memory: MemoryRange) -> Result<(), FabricError> {
        let mut rail = LibfabricRail::open(domain, &RailOptions { cuda_memory: true, ..options.clone() })?;
        // SAFETY: the caller guarantees that the memory is valid during the call, and the region is dropped in this
        // expression.
        unsafe { rail.register(memory, Access::ALL) }.map(drop)
    }

    /// Returns the provider's support for memory of CUDA devices, if it was requested ([`RailOptions::cuda_memory`]).
    #[must_use]
    pub fn gpu_memory(&self) -> &GpuMemory {
        &self.gpu_memory
    }

    /// Returns the version of the rail's provider, such as `117.0`.
    #[must_use]
    pub fn provider_version(&self) -> String {
        self.core.info.first().provider_version()
    }

    /// Returns the rail's own address in the provider's printed form: `127.0.0.1:40123`,
    /// `[fe80::8e7:efff:feee:e81d]:0:1234`. In hexadecimal if the provider has no such form.
    pub fn address_text(&self) -> Result<String, FabricError> {
        let address = self.address()?;
        let mut text = vec![0u8; ADDRESS_BYTES];
        let mut length = text.len();
        let (av, place) = (self.core.addresses.as_ptr(), text.as_mut_ptr().cast());
        // SAFETY: the address vector is open, the address is complete because it is the endpoint's own, and the text
        // has `length` bytes.
        let written = unsafe { ops::fi_av_straddr(av, address.as_ptr().cast(), place, &mut length) };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
        if written.is_null() || end == 0 {
            return Ok(address.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        // Remove the name of the format: `fi_sockaddr_in://127.0.0.1:40123`.
        let text = String::from_utf8_lossy(&text[..end]);
        Ok(text.split_once("://").map_or(&*text, |(_, rest)| rest).to_owned())
    }

    #[cold]
    pub(super) fn error(&self, doing: FailedOperation, operation: impl Into<String>, code: isize) -> FabricError {
        errors::error(&self.name, doing, operation, code as i64)
    }
}

/// Selects the provider's entry to open: with device memory if requested and available, and without posted receives if
/// possible.
fn choose_info(domain: &Domain, options: &RailOptions) -> Result<InfoList, FabricError> {
    let mut first_error = None;
    for cuda_memory in [true, false] {
        if cuda_memory && !options.cuda_memory {
            continue;
        }
        // A provider that consumes receives for immediates cannot identify messages by these receives.
        for posted_receives in [false, true].into_iter().filter(|posted| !(*posted && options.messages)) {
            let wanted = ProviderRequirements {
                provider: &domain.provider,
                fabric: Some(&domain.fabric),
                domain: Some(&domain.name),
                level: options.level,
                cuda_memory,
                posted_receives,
                messages: options.messages,
            };
            match info::query(&wanted) {
                Ok(list) => {
                    if let Some(info) = list.iter().find(|entry| domain.matches(*entry)).and_then(|e| e.duplicate()) {
                        return Ok(info);
                    }
                }
                // Keeps the error of the first request.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    Err(first_error.unwrap_or_else(|| {
        let what = format!("opening {}:{}", domain.provider, domain.name);
        errors::error(&domain.provider, FailedOperation::Opening, what, i64::from(sys::FI_ENODATA))
    }))
}

/// Returns the maximum transfer size: the limit of RMA if the provider reports it (libfabric 2.x), and otherwise that
/// of messages.
fn max_transfer_bytes(core: &Core) -> u64 {
    let of_messages = core.info.first().endpoint().max_msg_size;
    let (mut of_rma, mut length) = (0usize, size_of::<usize>());
    let (endpoint, value) = (core.endpoint(), (&raw mut of_rma).cast());
    // SAFETY: the endpoint is open; value and length are local variables of the option's type.
    let code = unsafe { ops::fi_getopt(endpoint, sys::FI_OPT_ENDPOINT, sys::FI_OPT_MAX_RMA_SIZE, value, &mut length) };
    let known = code == 0 && length == size_of::<usize>() && of_rma > 0;
    (if known { of_rma } else { of_messages }) as u64
}

impl LibfabricRail {
    /// Inserts an address into the address vector.
    fn insert(&self, peer: usize, address: &[u8]) -> Result<sys::fi_addr_t, FabricError> {
        let ours = self.address()?;
        let text = self.core.info.first().info().addr_format == sys::FI_ADDR_STR;
        // The provider reads as many bytes as its format has, so an address that is too short must not reach it.
        let whole = if text { address.last() == Some(&0) } else { address.len() == ours.len() };
        if !whole {
            let text = format!("the address has {} bytes instead of {}", address.len(), ours.len());
            return Err(mistake(&self.name, format!("fi_av_insert of peer {peer}"), text));
        }
        let mut inserted = sys::FI_ADDR_UNSPEC;
        let (av, bytes) = (self.core.addresses.as_ptr(), address.as_ptr().cast());
        // SAFETY: the address vector is open, the address is complete, and `inserted` is a local variable.
        let count = unsafe { ops::fi_av_insert(av, bytes, 1, &mut inserted, 0, ptr::null_mut()) };
        if count != 1 || inserted == sys::FI_ADDR_UNSPEC {
            let code = if count < 0 { count } else { sys::FI_EADDRNOTAVAIL };
            return Err(self.error(
                FailedOperation::Transferring,
                format!("fi_av_insert of peer {peer}"),
                code as isize,
            ));
        }
        Ok(inserted)
    }
}

impl Rail for LibfabricRail {
    type Region = LibfabricRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &RailLimits {
        &self.limits
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        let mut address = vec![0u8; ADDRESS_BYTES];
        let mut length = address.len();
        // SAFETY: the endpoint is open and the buffer has `length` bytes.
        let code = unsafe { ops::fi_getname(self.endpoint, address.as_mut_ptr().cast(), &mut length) };
        if code != 0 || length > ADDRESS_BYTES {
            return Err(self.error(FailedOperation::Opening, "fi_getname", code as isize));
        }
        address.truncate(length);
        Ok(address)
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        let peer = self.peers.len();
        self.sockets.add_peer().map_err(|text| mistake(&self.name, format!("connecting peer {peer}"), text))?;
        let inserted = self.insert(peer, address).inspect_err(|_| self.sockets.remove_peer())?;
        self.peers.push(inserted);
        Ok(peer)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        let known = self.peers.get_mut(peer).map(|address| std::mem::replace(address, sys::FI_ADDR_UNSPEC));
        let Some(mut address) = known.filter(|address| *address != sys::FI_ADDR_UNSPEC) else {
            return Err(mistake(&self.name, format!("fi_av_remove of peer {peer}"), "no such peer"));
        };
        self.sockets.remove_peer();
        // SAFETY: the address vector is open and contains this address, and the caller has no transfer outstanding to
        // it.
        match unsafe { ops::fi_av_remove(self.core.addresses.as_ptr(), &mut address, 1, 0) } {
            0 => Ok(()),
            code => {
                Err(self.error(FailedOperation::Transferring, format!("fi_av_remove of peer {peer}"), code as isize))
            }
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The contract of [`Rail::register`] must hold. When the region is dropped, no transfer that uses it may be
    /// outstanding, and no other thread may be inside a call of this rail (FI_THREAD_DOMAIN).
    unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<LibfabricRegion, FabricError> {
        if memory.cuda_device.is_some() && !self.limits.cuda_memory {
            if let GpuMemory::ByCudaCalls(refused) = &self.gpu_memory {
                return Err(FabricError::clone(refused));
            }
            let what = format!("registering {} B of CUDA memory", memory.bytes);
            let text = "the rail was opened without device memory (FI_HMEM not requested or not offered)";
            return Err(errors::refused(&self.name, FailedOperation::RegisteringCuda, what, sys::FI_ENOSYS, text));
        }
        // SAFETY: forwards the call; the caller upholds the same contract.
        let region = unsafe { LibfabricRegion::register(&self.name, &self.core, memory, access) };
        if region.is_err() && memory.cuda_device.is_some() {
            // FI_HMEM was offered for another kind of device memory. Further memory is staged.
            self.limits.cuda_memory = false;
        }
        region
    }

    fn remote(&self, region: &LibfabricRegion) -> RemoteRegion {
        region.remote()
    }

    #[inline(always)]
    unsafe fn write(&mut self, region: &LibfabricRegion, t: &Transfer) -> Result<Post, FabricError> {
        let peer = self.check(SlotOperation::Write, region, t)?;
        let Some(slot) = self.prepare(SlotOperation::Write, t.peer, t.bytes, t.token) else { return Ok(Post::Again) };
        let local = region.address + t.local_offset;
        let (source, length) = (ptr::with_exposed_provenance(local as usize), t.bytes as usize);
        let (remote, key, context) = (t.remote.base.wrapping_add(t.remote_offset), t.remote.key, slot.cast());
        let (endpoint, descriptor) = (self.endpoint, region.descriptor);
        let code = if self.needs_flags(t) {
            // SAFETY: the transfer is checked and the slot prepared above; the caller guarantees that the memory is
            // valid.
            unsafe { self.post_message(SlotOperation::Write, slot, local, descriptor, t, peer) }
        } else if let Some(value) = t.immediate {
            let value = u64::from(value);
            // SAFETY: the endpoint is open, the range is in the region, and the caller guarantees that its memory is
            // valid.
            unsafe { ops::fi_writedata(endpoint, source, length, descriptor, value, peer, remote, key, context) }
        } else {
            // SAFETY: the endpoint is open, the range is in the region, and the caller guarantees that its memory is
            // valid.
            unsafe { ops::fi_write(endpoint, source, length, descriptor, peer, remote, key, context) }
        };
        self.posted(|| operation(SlotOperation::Write, t.bytes, t.peer), code)
    }

    #[inline]
    unsafe fn read(&mut self, region: &LibfabricRegion, t: &Transfer) -> Result<Post, FabricError> {
        let t = &Transfer { immediate: None, ..*t };
        let peer = self.check(SlotOperation::Read, region, t)?;
        let Some(slot) = self.prepare(SlotOperation::Read, t.peer, t.bytes, t.token) else { return Ok(Post::Again) };
        let local = region.address + t.local_offset;
        let (target, length) = (ptr::with_exposed_provenance_mut(local as usize), t.bytes as usize);
        let (remote, key, context) = (t.remote.base.wrapping_add(t.remote_offset), t.remote.key, slot.cast());
        let code = if self.hold_doorbell(t) {
            // SAFETY: the transfer is checked and the slot prepared above; the caller guarantees that the memory is
            // valid.
            unsafe { self.post_message(SlotOperation::Read, slot, local, region.descriptor, t, peer) }
        } else {
            // SAFETY: the endpoint is open, the range is in the region, and the caller guarantees that its memory is
            // valid.
            unsafe { ops::fi_read(self.endpoint, target, length, region.descriptor, peer, remote, key, context) }
        };
        self.posted(|| operation(SlotOperation::Read, t.bytes, t.peer), code)
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        if let Some(error) = self.late_error.take() {
            return Err(*error);
        }
        let before = completions.len();
        match self.read_queue(completions) {
            // Returns the completions first, and the error from the next poll.
            Err(error) if completions.len() > before => {
                self.late_error = Some(Box::new(error));
                Ok(())
            }
            polled => polled,
        }
    }
}
