//! The rail: posting and polling.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::{Kind, Slot};
use super::errors::{self, Doing};
use super::info::{self, InfoList, Wanted};
use super::objects::Core;
use super::{Level, LibfabricRegion, RailOptions};
use crate::fabric::discover::Domain;
use crate::fabric::{Completion, FabricError, Memory, Post, Rail, RailLimits, RemoteRegion, Transfer};

/// Completions read by one call.
const BATCH: usize = 64;
/// Full batches read by one poll: a poll stays bounded however fast completions come.
const BATCHES: usize = 16;
/// Addresses are 16 to 64 bytes; shm's are names.
const ADDRESS_BYTES: usize = 512;

/// One endpoint on one domain of a libfabric provider.
///
/// Memory of CUDA devices: written against the FI_HMEM interface (fi_mr_regattr with FI_HMEM_CUDA) but not run yet, for want
/// of a machine whose libfabric has it; tested is only that such a registration fails with a clear error where it is missing.
pub struct LibfabricRail {
    // Pointers and credit first: the hot path touches nothing else.
    pub(super) endpoint: *mut sys::fid_ep,
    pub(super) queue: *mut sys::fid_cq,
    /// Slots without an operation: the credit. Last in, first out, so that the few in use stay in the cache.
    free: Vec<*mut Slot>,
    pub(super) peers: Vec<sys::fi_addr_t>,
    limits: RailLimits,
    level: Level,
    next_key: u64,
    slots: usize,
    /// A bare loop ended early and the provider may still hold its contexts.
    pub(super) bare_outstanding: bool,
    name: String,
    entries: Box<[sys::fi_cq_data_entry; BATCH]>,
    pub(super) core: Arc<Core>,
}

// SAFETY: the pointers belong to `core`, whose objects are not bound to a thread; `&mut self` keeps calls from overlapping.
unsafe impl Send for LibfabricRail {}

impl std::fmt::Debug for LibfabricRail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibfabricRail").field("name", &self.name).field("limits", &self.limits).finish()
    }
}

impl LibfabricRail {
    /// Opens a rail on a domain that [`crate::fabric::discover`] found.
    pub fn open(domain: &Domain, options: &RailOptions) -> Result<Self, FabricError> {
        let name = format!("{}:{}", domain.provider, domain.name);
        let info = choose_info(domain, options)?;
        let entry = info.first();
        let cuda_memory = entry.info().caps & sys::FI_HMEM != 0;
        let immediate_bytes = entry.domain().cq_data_size;
        let link_bits_per_second = entry.link_bits_per_second();
        let core = Arc::new(Core::open(&name, info)?);
        let mut free: Vec<_> = core.contexts.transfers().rev().collect();
        if let Some(most) = options.max_outstanding {
            free.truncate(most.max(1));
        }
        let limits = RailLimits {
            max_transfer_bytes: max_transfer_bytes(&core),
            max_outstanding: free.len(),
            immediate_bytes,
            link_bits_per_second,
            cuda_memory,
        };
        let mut rail = Self {
            endpoint: core.endpoint.as_ptr(),
            queue: core.queue.as_ptr(),
            slots: free.len(),
            bare_outstanding: false,
            free,
            peers: Vec::new(),
            limits,
            level: options.level,
            next_key: 1,
            name,
            entries: Box::new([sys::fi_cq_data_entry::default(); BATCH]),
            core,
        };
        rail.post_all_receives()?;
        Ok(rail)
    }

    /// Transfers that are posted and not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots - self.free.len()
    }

    /// The level that the rail was opened with.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The version of the provider that is behind the rail, as `117.0`.
    #[must_use]
    pub fn provider_version(&self) -> String {
        let version = self.core.info.first().provider_version();
        format!("{}.{}", version >> 16, version & 0xffff)
    }

    #[cold]
    pub(super) fn mistake(&self, operation: String, text: String) -> FabricError {
        errors::refused(&self.name, Doing::Checking, operation, sys::FI_EINVAL, text)
    }

    #[cold]
    pub(super) fn error(&self, doing: Doing, operation: impl Into<String>, code: isize) -> FabricError {
        errors::error(&self.name, doing, operation, code as i64)
    }

    /// Posted receives, for providers that spend one on each immediate (FI_RX_CQ_DATA). Written after the manual; no
    /// provider of libfabric 1.17 that runs here asks for it.
    fn post_all_receives(&mut self) -> Result<(), FabricError> {
        let core = Arc::clone(&self.core);
        core.contexts.receives().try_for_each(|slot| self.post_receive(slot.cast()))
    }

    fn post_receive(&mut self, context: *mut c_void) -> Result<(), FabricError> {
        let none = ptr::null_mut();
        // SAFETY: the endpoint is open, the buffer is empty, and the context lives as long as the endpoint.
        match unsafe { ops::fi_recv(self.endpoint, none, 0, none, sys::FI_ADDR_UNSPEC, context) } {
            0 => Ok(()),
            code => Err(self.error(Doing::Opening, "fi_recv of an empty message for immediates", code)),
        }
    }

    /// Everything that must hold before a post; the peer's address in the provider's numbering.
    #[inline]
    fn check(&self, kind: Kind, region: &LibfabricRegion, t: &Transfer) -> Result<sys::fi_addr_t, FabricError> {
        let within = |offset: u64, bytes: u64| offset <= bytes && t.bytes <= bytes - offset;
        match self.peers.get(t.peer) {
            Some(peer)
                if within(t.local_offset, region.bytes)
                    && within(t.remote_offset, t.remote.bytes)
                    && t.bytes <= self.limits.max_transfer_bytes
                    && (t.bytes > 0 || t.immediate.is_some() && kind == Kind::Write)
                    && (t.immediate.is_none() || self.limits.immediate_bytes >= 4)
                    && region.belongs_to(&self.core) =>
            {
                Ok(*peer)
            }
            _ => Err(self.why_refused(kind, region, t)),
        }
    }

    #[cold]
    fn why_refused(&self, kind: Kind, region: &LibfabricRegion, t: &Transfer) -> FabricError {
        let outside = |what: &str, offset: u64, bytes: u64| {
            (offset > bytes || t.bytes > bytes - offset)
                .then(|| format!("offset {offset} and {} B do not lie in the {what} region of {bytes} B", t.bytes))
        };
        let text = if t.peer >= self.peers.len() {
            format!("there are {} peers", self.peers.len())
        } else if let Some(text) = outside("local", t.local_offset, region.bytes) {
            text
        } else if let Some(text) = outside("peer's", t.remote_offset, t.remote.bytes) {
            text
        } else if t.bytes > self.limits.max_transfer_bytes {
            format!("the provider takes {} B at most in one transfer", self.limits.max_transfer_bytes)
        } else if !region.belongs_to(&self.core) {
            "the region is registered with another rail".to_owned()
        } else if t.bytes == 0 {
            "nothing to move and no immediate".to_owned()
        } else {
            format!("the provider's immediates have {} bytes, 4 are needed", self.limits.immediate_bytes)
        };
        self.mistake(operation(kind, t.bytes, t.peer), text)
    }

    /// What came of a post: the slot is spent, or nothing has happened.
    #[inline]
    fn posted(&mut self, kind: Kind, t: &Transfer, code: isize) -> Result<Post, FabricError> {
        const AGAIN: isize = -(sys::FI_EAGAIN as isize);
        match code {
            0 => {
                self.free.pop();
                Ok(Post::Accepted)
            }
            AGAIN => Ok(Post::Again),
            code => Err(self.error(Doing::Transferring, operation(kind, t.bytes, t.peer), code)),
        }
    }

    /// Fills the next free slot; `None` when the credit is used up.
    #[inline]
    fn prepare(&mut self, kind: Kind, t: &Transfer) -> Option<*mut Slot> {
        let slot = *self.free.last()?;
        // SAFETY: the slot is free: the provider does not hold it, and only this rail writes to its slots. Its own part
        // (`provider`) is left alone.
        unsafe {
            (*slot).token = t.token;
            (*slot).bytes = t.bytes;
            (*slot).peer = t.peer as u32;
            (*slot).kind = kind;
        }
        Some(slot)
    }

    /// Posts with flags of its own: those of the call replace the endpoint's, so the level is named again.
    ///
    /// # Safety
    /// As for [`Rail::write`] and [`Rail::read`]; the transfer is checked and the slot prepared.
    unsafe fn post_message(
        &self,
        kind: Kind,
        slot: *mut Slot,
        local: u64,
        descriptor: *mut c_void,
        t: &Transfer,
        peer: u64,
    ) -> isize {
        let mut descriptor = descriptor;
        let stretch =
            sys::iovec { iov_base: ptr::with_exposed_provenance_mut(local as usize), iov_len: t.bytes as usize };
        let target = sys::fi_rma_iov {
            addr: t.remote.base.wrapping_add(t.remote_offset),
            len: t.bytes as usize,
            key: t.remote.key,
        };
        let message = sys::fi_msg_rma {
            msg_iov: &stretch,
            desc: &mut descriptor,
            iov_count: 1,
            addr: peer,
            rma_iov: &target,
            rma_iov_count: 1,
            context: slot.cast(),
            data: t.immediate.map_or(0, u64::from),
        };
        let flags = sys::FI_MORE | sys::FI_COMPLETION | self.level.flag();
        if kind == Kind::Read {
            // SAFETY: as below. Reads complete when the data is here, whatever the level.
            return unsafe { ops::fi_readmsg(self.endpoint, &message, sys::FI_MORE | sys::FI_COMPLETION) };
        }
        let immediate = if t.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        // SAFETY: the endpoint is open, the message lives during the call, the caller vouches for the memory.
        unsafe { ops::fi_writemsg(self.endpoint, &message, flags | immediate) }
    }

    /// Whether to pass FI_MORE: not with the last credit, since the next post would be refused before it reaches the
    /// provider and the doorbell would stay held.
    #[inline]
    fn hold_doorbell(&self, t: &Transfer) -> bool {
        t.more && self.free.len() > 1
    }

    /// Turns one queue entry into a completion.
    #[inline]
    fn complete(
        &mut self,
        entry: &sys::fi_cq_data_entry,
        completions: &mut Vec<Completion>,
    ) -> Result<(), FabricError> {
        const OURS: u64 = sys::FI_WRITE | sys::FI_READ;
        // By flags before by context: a target's entry may carry a context that is the initiator's.
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 && entry.flags & OURS == 0 {
            completions.push(Completion::Immediate { value: entry.data as u32 });
            if self.core.contexts.is_receive(entry.op_context) {
                self.post_receive(entry.op_context)?;
            }
        } else if let Some(token) = self.release(entry.op_context).map(|(token, ..)| token) {
            completions.push(Completion::Done { token });
        }
        // Anything else is a late completion of a bare loop that ran out of time: nobody waits for it.
        Ok(())
    }

    /// Takes a completed slot back; `None` when the context names none that is posted.
    #[inline]
    fn release(&mut self, context: *mut c_void) -> Option<(u64, Kind, u64, u32)> {
        let slot = self.core.contexts.transfer(context)?;
        // SAFETY: the slot is one of this rail's and the provider has given it back.
        let (token, kind, bytes, peer) = unsafe { ((*slot).token, (*slot).kind, (*slot).bytes, (*slot).peer) };
        if kind == Kind::Free {
            return None;
        }
        // SAFETY: as above.
        unsafe { (*slot).kind = Kind::Free };
        self.free.push(slot);
        Some((token, kind, bytes, peer))
    }

    /// Reads one error entry.
    #[cold]
    fn read_error(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: the queue is open, the entry is ours.
        let code = unsafe { ops::fi_cq_readerr(self.queue, &mut entry, 0) };
        if code == -(sys::FI_EAGAIN as isize) {
            return Ok(());
        }
        if code < 0 {
            return Err(self.error(Doing::Transferring, "fi_cq_readerr", code));
        }
        let (token, what) = match self.release(entry.op_context) {
            Some((token, kind, bytes, peer)) => (Some(token), operation(kind, bytes, peer as usize)),
            None if self.core.contexts.is_bare(entry.op_context) => (None, "a write of the bare loop".to_owned()),
            None => (None, "an incoming transfer".to_owned()),
        };
        let error = errors::refused(&self.name, Doing::Transferring, what, entry.err, self.words_of(&entry));
        completions.push(Completion::Failed { token, error });
        Ok(())
    }

    /// libfabric's text for the code, and the provider's own where it says more.
    fn words_of(&self, entry: &sys::fi_cq_err_entry) -> String {
        let text = errors::text(entry.err);
        let mut buffer = [0; 256];
        // SAFETY: queue and buffer are valid; the error data is the entry's.
        let words = unsafe {
            ops::fi_cq_strerror(self.queue, entry.prov_errno, entry.err_data, buffer.as_mut_ptr(), buffer.len())
        };
        if words.is_null() {
            return text;
        }
        // SAFETY: not null, hence a C string: static or in the buffer.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        if words.is_empty() || words == text { text } else { format!("{text}: {words} [{}]", entry.prov_errno) }
    }
}

/// `fi_write of 4096 B to peer 1`.
fn operation(kind: Kind, bytes: u64, peer: usize) -> String {
    match kind {
        Kind::Read => format!("fi_read of {bytes} B from peer {peer}"),
        _ => format!("fi_write of {bytes} B to peer {peer}"),
    }
}

/// The provider's entry to open: with device memory when asked and there, without posted receives when possible.
fn choose_info(domain: &Domain, options: &RailOptions) -> Result<InfoList, FabricError> {
    let mut first_error = None;
    for cuda_memory in [true, false] {
        if cuda_memory && !options.cuda_memory {
            continue;
        }
        for posted_receives in [false, true] {
            let wanted = Wanted {
                provider: &domain.provider,
                fabric: Some(&domain.fabric),
                domain: Some(&domain.name),
                level: options.level,
                cuda_memory,
                posted_receives,
            };
            match info::query(&wanted) {
                Ok(list) => {
                    if let Some(info) = list.iter().find(|entry| domain.matches(*entry)).and_then(|e| e.duplicate()) {
                        return Ok(info);
                    }
                }
                // The error of the plainest request tells most.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
    }
    Err(first_error.unwrap_or_else(|| {
        let what = format!("opening {}:{}", domain.provider, domain.name);
        errors::error(&domain.provider, Doing::Opening, what, i64::from(sys::FI_ENODATA))
    }))
}

/// The message limit, or the RMA limit where the provider tells one of its own (libfabric 2.x).
fn max_transfer_bytes(core: &Core) -> u64 {
    let of_messages = core.info.first().endpoint().max_msg_size;
    let (mut of_rma, mut length) = (0usize, size_of::<usize>());
    // SAFETY: the endpoint is open; value and length are ours and of the option's type.
    let code = unsafe {
        ops::fi_getopt(
            core.endpoint.fid(),
            sys::FI_OPT_ENDPOINT as i32,
            sys::OPT_MAX_RMA_SIZE,
            (&raw mut of_rma).cast(),
            &mut length,
        )
    };
    let known = code == 0 && length == size_of::<usize>() && of_rma > 0;
    (if known { of_rma } else { of_messages }) as u64
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
        let code = unsafe { ops::fi_getname(self.core.endpoint.fid(), address.as_mut_ptr().cast(), &mut length) };
        if code != 0 || length > ADDRESS_BYTES {
            return Err(self.error(Doing::Opening, "fi_getname", code as isize));
        }
        address.truncate(length);
        Ok(address)
    }

    fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
        let ours = self.address()?;
        let text = self.core.info.first().info().addr_format == sys::FI_ADDR_STR;
        let mut peers = Vec::with_capacity(addresses.len());
        for (peer, address) in addresses.iter().enumerate() {
            // The provider reads as much as its format says, so a short address must not reach it.
            let whole = if text { address.last() == Some(&0) } else { address.len() == ours.len() };
            if !whole {
                let text = format!("the address has {} bytes, {} are expected", address.len(), ours.len());
                return Err(self.mistake(format!("fi_av_insert of peer {peer}"), text));
            }
            let mut inserted = sys::FI_ADDR_UNSPEC;
            let (av, bytes) = (self.core.addresses.as_ptr(), address.as_ptr().cast());
            // SAFETY: the address vector is open, the address is whole, the place is ours.
            let count = unsafe { ops::fi_av_insert(av, bytes, 1, &mut inserted, 0, ptr::null_mut()) };
            if count != 1 || inserted == sys::FI_ADDR_UNSPEC {
                let code = if count < 0 { count } else { sys::FI_EADDRNOTAVAIL };
                return Err(self.error(Doing::Transferring, format!("fi_av_insert of peer {peer}"), code as isize));
            }
            peers.push(inserted);
        }
        self.peers = peers;
        Ok(())
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As the trait says. The region is dropped when no transfer that uses it is outstanding, and while no other thread is
    /// inside a call of this rail (FI_THREAD_DOMAIN).
    unsafe fn register(&mut self, memory: Memory) -> Result<LibfabricRegion, FabricError> {
        if memory.cuda_device.is_some() && !self.limits.cuda_memory {
            let what = format!("registering {} B of CUDA memory", memory.bytes);
            let text = "the rail was opened without device memory (FI_HMEM not asked for or not offered)";
            return Err(errors::refused(&self.name, Doing::RegisteringCuda, what, sys::FI_ENOSYS, text));
        }
        // Providers without FI_MR_PROV_KEY take the key from us; it must be unique in the domain.
        let key = self.next_key;
        self.next_key += 1;
        // SAFETY: passed on.
        let region = unsafe { LibfabricRegion::register(&self.name, &self.core, memory, key) };
        if region.is_err() && memory.cuda_device.is_some() {
            // FI_HMEM was offered for some other kind of device memory: what follows is staged.
            self.limits.cuda_memory = false;
        }
        region
    }

    fn remote(&self, region: &LibfabricRegion) -> RemoteRegion {
        region.remote()
    }

    #[inline]
    unsafe fn write(&mut self, region: &LibfabricRegion, t: &Transfer) -> Result<Post, FabricError> {
        let peer = self.check(Kind::Write, region, t)?;
        let Some(slot) = self.prepare(Kind::Write, t) else { return Ok(Post::Again) };
        let local = region.address + t.local_offset;
        let (source, length) = (ptr::with_exposed_provenance(local as usize), t.bytes as usize);
        let (remote, key, context) = (t.remote.base.wrapping_add(t.remote_offset), t.remote.key, slot.cast());
        let (endpoint, descriptor) = (self.endpoint, region.descriptor);
        let code = if self.hold_doorbell(t) {
            // SAFETY: checked and prepared above.
            unsafe { self.post_message(Kind::Write, slot, local, descriptor, t, peer) }
        } else if let Some(value) = t.immediate {
            let value = u64::from(value);
            // SAFETY: the endpoint is open, the range lies in the region, the caller vouches for its memory.
            unsafe { ops::fi_writedata(endpoint, source, length, descriptor, value, peer, remote, key, context) }
        } else {
            // SAFETY: as above.
            unsafe { ops::fi_write(endpoint, source, length, descriptor, peer, remote, key, context) }
        };
        self.posted(Kind::Write, t, code)
    }

    #[inline]
    unsafe fn read(&mut self, region: &LibfabricRegion, t: &Transfer) -> Result<Post, FabricError> {
        let t = &Transfer { immediate: None, ..*t };
        let peer = self.check(Kind::Read, region, t)?;
        let Some(slot) = self.prepare(Kind::Read, t) else { return Ok(Post::Again) };
        let local = region.address + t.local_offset;
        let (target, length) = (ptr::with_exposed_provenance_mut(local as usize), t.bytes as usize);
        let (remote, key, context) = (t.remote.base.wrapping_add(t.remote_offset), t.remote.key, slot.cast());
        let code = if self.hold_doorbell(t) {
            // SAFETY: checked and prepared above.
            unsafe { self.post_message(Kind::Read, slot, local, region.descriptor, t, peer) }
        } else {
            // SAFETY: the endpoint is open, the range lies in the region, the caller vouches for its memory.
            unsafe { ops::fi_read(self.endpoint, target, length, region.descriptor, peer, remote, key, context) }
        };
        self.posted(Kind::Read, t, code)
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        const AGAIN: isize = -(sys::FI_EAGAIN as isize);
        const ERROR_WAITS: isize = -(sys::FI_EAVAIL as isize);
        for _ in 0..BATCHES {
            // SAFETY: the queue is open and the buffer has BATCH entries of the queue's format.
            match unsafe { ops::fi_cq_read(self.queue, self.entries.as_mut_ptr().cast(), BATCH) } {
                count @ 1.. => {
                    let count = (count as usize).min(BATCH);
                    for index in 0..count {
                        let entry = self.entries[index];
                        self.complete(&entry, completions)?;
                    }
                    if count < BATCH {
                        return Ok(());
                    }
                }
                0 | AGAIN => return Ok(()),
                ERROR_WAITS => self.read_error(completions)?,
                code => return Err(self.error(Doing::Transferring, "fi_cq_read", code)),
            }
        }
        Ok(())
    }
}
