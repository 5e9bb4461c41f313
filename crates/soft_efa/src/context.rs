//! An open device: protection domains, address handles.

use crate::abi::*;
use crate::address::{Gid, handles_name, queue_name, table_name};
use crate::handles::Handles;
use crate::locked;
use crate::machine::{SoftDevice, SoftMachine};
use crate::memory::{KeyTable, MOST};
use crate::peer::Peers;
use crate::request::{PostedRequest, RequestKind, SEND_PIECES};
use crate::share::Shared;
use crate::wire::{DeviceWire, RequestTimes};
use card_model::MachineSpec;
use std::ffi::c_int;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of queue pairs of an open device; a power of two, because the provider finds a queue pair by the low
/// bits of its number.
pub const PAIRS: usize = 256;
/// Maximum size of a message in bytes.
const MESSAGE: u32 = 8928;
/// PCI vendor ID of Amazon.
const VENDOR: u32 = 0x1d0f;

/// An open device. The part visible to C comes first; its last member is the `ibv_context` that C receives.
#[repr(C)]
pub struct DeviceContext {
    verbs: verbs_context,
    /// Device that this context opened.
    pub device: &'static SoftDevice,
    /// Machine of the device.
    pub machine: &'static SoftMachine,
    /// Index among the contexts of this process.
    pub number: u32,
    /// Registrations of this context.
    pub table: KeyTable,
    /// Cache of the peers' queue pairs.
    pub peers: Peers,
    /// Wire over which the requests of this context leave.
    pub wire: DeviceWire,
    pub free_keys: Mutex<(usize, Vec<usize>)>,
    /// Address handles of this context.
    pub handles: Handles,
    /// Number, protection domain and address of each handle.
    owners: Mutex<Vec<(u16, u32, Gid)>>,
    /// Numbers of the queue pairs, indexed by the low bits of the number.
    pub pairs: Mutex<Box<[Option<u32>; PAIRS]>>,
    domains: AtomicU32,
    /// Descriptor of asynchronous events, which C polls. Software NICs report none.
    _events: OwnedFd,
}

// SAFETY: the part visible to C is written before the context is shared; the rest is protected by locks or atomic.
unsafe impl Sync for DeviceContext {}

/// An address handle.
#[repr(C)]
pub struct AddressHandle {
    verbs: ibv_ah,
    /// Address of the device that the handle refers to.
    pub gid: Gid,
    /// Number of the handle.
    pub number: u16,
}

impl AddressHandle {
    /// Returns the number of the handle's protection domain.
    pub fn domain(&self) -> u32 {
        // SAFETY: C must keep the domain alive as long as its handles.
        unsafe { (*self.verbs.pd).handle }
    }
}

/// Sets errno and returns null.
pub fn refuse<T>(code: c_int) -> *mut T {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = code };
    std::ptr::null_mut()
}

/// Functions in the table of an open device that depend on modules above this one. The code that opens the device
/// supplies them.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Creates a completion queue.
    pub create_cq: unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    /// Polls a completion queue.
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    /// Requests a notification of a completion queue.
    pub req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    /// Posts sends.
    pub post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    /// Posts receives.
    pub post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

impl DeviceContext {
    /// Opens a device.
    pub fn open(
        machine: &'static SoftMachine,
        device: &'static SoftDevice,
        calls: Calls,
    ) -> io::Result<*mut ibv_context> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let wire = DeviceWire::common(machine, &device.gid)?;
        let pid = std::process::id() as i32;
        let table = KeyTable::new(&table_name(&device.gid, pid, number))?;
        let handles = Handles::new(&handles_name(&device.gid, pid, number))?;
        // SAFETY: the type has only numbers, pointers and optional functions, for all of which zero is a valid value.
        let mut verbs: verbs_context = unsafe { std::mem::zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(query_port);
        verbs.create_cq_ex = Some(calls.create_cq);
        verbs.context.device = (&raw const device.verbs).cast_mut();
        verbs.context.abi_compat = EXTENDED;
        // SAFETY: the call takes no pointers.
        let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if events < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to this process.
        let events = unsafe { OwnedFd::from_raw_fd(events) };
        (verbs.context.cmd_fd, verbs.context.async_fd, verbs.context.num_comp_vectors) = (-1, events.as_raw_fd(), 1);
        verbs.context.ops.poll_cq = Some(calls.poll_cq);
        verbs.context.ops.req_notify_cq = Some(calls.req_notify_cq);
        verbs.context.ops.post_send = Some(calls.post_send);
        verbs.context.ops.post_recv = Some(calls.post_recv);
        let context = Box::leak(Box::new(DeviceContext {
            verbs,
            device,
            machine,
            number,
            table,
            peers: Peers::new(machine),
            wire,
            free_keys: Mutex::default(),
            handles,
            owners: Mutex::default(),
            pairs: Mutex::new(Box::new([None; PAIRS])),
            domains: AtomicU32::new(0),
            _events: events,
        }));
        Ok(&raw mut context.verbs.context)
    }

    /// Returns the context of a C pointer.
    ///
    /// # Safety
    /// `context` must have been returned by [`DeviceContext::open`] and not be closed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a DeviceContext {
        let offset = offset_of!(verbs_context, context);
        // SAFETY: the pointer is to a member of a `verbs_context`, which is the first member of a `DeviceContext`.
        unsafe { &*context.byte_sub(offset).cast::<DeviceContext>() }
    }

    /// Returns the pointer that C uses to refer to this context.
    pub fn verbs(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Returns the addresses for which `domain` has a handle, indexed by handle number.
    pub fn gids(&self, domain: u32) -> Vec<Option<Gid>> {
        let owners = locked(&self.owners);
        let mut gids = Vec::new();
        for (number, _, gid) in owners.iter().filter(|(_, of, _)| *of == domain) {
            let number = usize::from(*number);
            if gids.len() <= number {
                gids.resize(number + 1, None);
            }
            gids[number] = Some(*gid);
        }
        gids
    }

    /// Returns the times at which a request that is posted now arrives and is acknowledged, or `None` if the devices
    /// are not timed.
    pub fn times(&self, request: &PostedRequest) -> Option<RequestTimes> {
        if request.kind != RequestKind::Read {
            return self.wire.sends(request.bytes());
        }
        // The bytes of a read leave over the wire of the device whose memory is read. An unknown peer sends no bytes.
        match self.peers.find(&request.gid, request.number) {
            Some(peer) => peer.wire.answers(request.bytes()),
            None => self.wire.answers(0),
        }
    }
}

/// Closes a device.
///
/// # Safety
/// The context must be open, and nothing created from it may be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let offset = offset_of!(verbs_context, context);
    // SAFETY: `open` leaked the context from a box.
    let context = unsafe { Box::from_raw(context.byte_sub(offset).cast::<DeviceContext>()) };
    // Queue pairs that the program has not destroyed are destroyed with their device, as the kernel driver does.
    for number in locked(&context.pairs).iter().flatten() {
        Shared::remove(&queue_name(&context.device.gid, *number));
    }
    0
}

/// Writes the attributes that all devices share.
///
/// # Safety
/// The context must be open, and `place` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, place: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller guarantees that the context is open.
    let spec = &unsafe { DeviceContext::of(context) }.machine.spec;
    // SAFETY: the type has only numbers, for which zero is a valid value.
    let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
    for (to, from) in attributes.fw_ver.iter_mut().zip(b"0.0.0.0") {
        *to = *from as std::ffi::c_char;
    }
    attributes.max_mr_size = 1 << 40;
    attributes.page_size_cap = 4096;
    attributes.vendor_id = VENDOR;
    attributes.vendor_part_id = part_of(spec);
    attributes.max_qp = PAIRS as c_int;
    attributes.max_qp_wr = spec.depth as c_int;
    (attributes.max_sge, attributes.max_sge_rd) = (SEND_PIECES as c_int, 1);
    (attributes.max_cq, attributes.max_cqe) = (512, 32768);
    (attributes.max_mr, attributes.max_pd, attributes.max_ah) = (MOST as c_int, 256, 65535);
    (attributes.max_pkeys, attributes.phys_port_cnt) = (1, 1);
    // SAFETY: the caller guarantees that `place` is valid for writes.
    unsafe { place.write(attributes) };
    0
}

/// Returns the PCI device ID, by the name of the profile.
///
/// The table of rdma-core (providers/efa/efa.c) and the kernel driver have 0xefa0 to 0xefa4. libfabric (prov/efa)
/// treats only 0xefa0 as a device without RDMA write. A p5.48xlarge has 0xefa1, according to the topologies that NCCL
/// dumps there. aws-ofi-nccl (platform-aws.cpp) takes 0xefa0 to 0xefa2 for devices before p6.
fn part_of(spec: &MachineSpec) -> u32 {
    match spec.name.as_str() {
        _ if !spec.writes => 0xefa0,
        "p5en" => 0xefa2,
        name if name.starts_with("p6") => 0xefa3,
        _ => 0xefa1,
    }
}

/// Returns a speed and width whose product, as libfabric computes it, is the line rate.
fn speed(gigabits: f64) -> (u8, u8) {
    match gigabits as u32 {
        0..=100 => (32, 2),
        // A speed of 32 is 25 Gb/s per lane and a width of 4 is 8 lanes: libfabric 1.17 supports no faster lanes.
        101..=200 => (32, 4),
        _ => (128, 2),
    }
}

/// Writes the attributes of the port.
///
/// # Safety
/// The context must be open, and `place` must be valid for `length` bytes.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    place: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the context is open.
    let context = unsafe { DeviceContext::of(context) };
    // SAFETY: the type has only numbers, for which zero is a valid value.
    let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
    attributes.state = IBV_PORT_ACTIVE;
    attributes.gid_tbl_len = 1;
    attributes.max_msg_sz = MESSAGE;
    attributes.pkey_tbl_len = 1;
    attributes.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    (attributes.max_mtu, attributes.active_mtu) = (5, 5);
    let gigabits = context.machine.spec.figures.map_or(100.0, |figures| figures.line_rate_gbps);
    (attributes.active_speed, attributes.active_width) = speed(gigabits);
    // SAFETY: the copy is limited to the shorter of both; older programs have a shorter structure.
    unsafe {
        let bytes = length.min(size_of::<ibv_port_attr>());
        std::ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), place.cast(), bytes);
    }
    0
}

/// Allocates a protection domain of the device.
///
/// # Safety
/// The context must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller guarantees that the context is open.
    let handle = unsafe { DeviceContext::of(context) }.domains.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(ibv_pd { context, handle }))
}

/// Frees a protection domain.
///
/// # Safety
/// `domain` must have been returned by [`ibv_alloc_pd`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: the caller guarantees that `ibv_alloc_pd` made the domain from a box, and that it is no longer used.
    drop(unsafe { Box::from_raw(domain) });
    0
}

/// Creates an address handle.
///
/// # Safety
/// `domain` must have been returned by [`ibv_alloc_pd`], and `attributes` must be valid for reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller guarantees that both pointers are valid; a GID is bytes in any case.
    let (context, gid) = unsafe { (DeviceContext::of((*domain).context), (*attributes).grh.dgid.raw) };
    // Locks the owners before the handles' version changes: a thread that sees the new version then searches the
    // owners.
    let mut owners = locked(&context.owners);
    let Some(number) = context.handles.add(&gid) else { return refuse(libc::ENOMEM) };
    // SAFETY: the caller guarantees that the domain is valid.
    owners.push((number, unsafe { (*domain).handle }, gid));
    drop(owners);
    let verbs = ibv_ah { context: context.verbs(), pd: domain, handle: u32::from(number) };
    Box::into_raw(Box::new(AddressHandle { verbs, gid, number })).cast()
}

/// Destroys an address handle.
///
/// # Safety
/// `handle` must have been returned by [`ibv_create_ah`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    // SAFETY: the caller guarantees that `ibv_create_ah` made the handle from a box, and that it is no longer used.
    let handle = unsafe { Box::from_raw(handle.cast::<AddressHandle>()) };
    // SAFETY: C must not close a context that has address handles.
    let context = unsafe { DeviceContext::of(handle.verbs.context) };
    let mut owners = locked(&context.owners);
    let this = (handle.number, handle.domain(), handle.gid);
    if let Some(place) = owners.iter().position(|owner| *owner == this) {
        owners.swap_remove(place);
    }
    context.handles.remove(handle.number);
    0
}
