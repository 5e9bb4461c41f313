//! An open card: protection domains, registered memory, address handles.

use crate::abi::*;
use crate::address::{Gid, handles_name, queue_name, table_name};
use crate::handles::Handles;
use crate::locked;
use crate::machine::{Device, Machine};
use crate::memory::{self, MOST, Range, Table};
use crate::peer::Peers;
use crate::request::{Kind, Request, SEND_PIECES};
use crate::share::Shared;
use crate::wire::{Times, Wire};
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Queue pairs of an open card; the provider finds one by so many low bits of its number.
pub const PAIRS: usize = 256;
/// Largest message.
const MESSAGE: u32 = 8928;
/// Amazon's.
const VENDOR: u32 = 0x1d0f;

/// An open card. What C sees comes first; of that, what it is handed is the last member.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    /// What it is.
    pub device: &'static Device,
    /// Where it is.
    pub machine: &'static Machine,
    /// Number among the contexts of this process.
    pub number: u32,
    /// Registrations.
    pub table: Table,
    /// Queue pairs that were met.
    pub peers: Peers,
    /// By which its requests leave.
    pub wire: Wire,
    free_keys: Mutex<(usize, Vec<usize>)>,
    /// Address handles.
    pub handles: Handles,
    /// Whose handles they are: number, domain, address, one entry for each handle.
    owners: Mutex<Vec<(u16, u32, Gid)>>,
    /// By low bits: the numbers of queue pairs.
    pub pairs: Mutex<Box<[Option<u32>; PAIRS]>>,
    domains: AtomicU32,
}

// SAFETY: what C sees is written before it is shared; the rest is behind locks or atomic.
unsafe impl Sync for Context {}

/// An address handle.
#[repr(C)]
pub struct Handle {
    verbs: ibv_ah,
    /// Whose address.
    pub gid: Gid,
    /// Its number.
    pub number: u16,
}

impl Handle {
    /// The number of its protection domain.
    pub fn domain(&self) -> u32 {
        // SAFETY: the domain is there as long as its handles, by C's contract.
        unsafe { (*self.verbs.pd).handle }
    }
}

/// Sets errno and answers with nothing.
pub fn refuse<T>(code: c_int) -> *mut T {
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = code };
    std::ptr::null_mut()
}

/// What C calls by an open card's table and what knows the card, so that the card cannot know it: whoever opens the card does.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Makes a completion queue.
    pub create_cq: unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
    /// Posts sends.
    pub post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    /// Posts receives.
    pub post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

impl Context {
    /// Opens a card.
    pub fn open(machine: &'static Machine, device: &'static Device, calls: Calls) -> io::Result<*mut ibv_context> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let wire = Wire::common(machine, &device.gid)?;
        let pid = std::process::id() as i32;
        let table = Table::new(&table_name(&device.gid, pid, number))?;
        let handles = Handles::new(&handles_name(&device.gid, pid, number))?;
        // SAFETY: numbers, pointers and optional functions: zero is a value of each.
        let mut verbs: verbs_context = unsafe { std::mem::zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(query_port);
        verbs.create_cq_ex = Some(calls.create_cq);
        verbs.context.device = (&raw const device.verbs).cast_mut();
        verbs.context.abi_compat = EXTENDED;
        (verbs.context.cmd_fd, verbs.context.async_fd, verbs.context.num_comp_vectors) = (-1, -1, 1);
        verbs.context.ops.post_send = Some(calls.post_send);
        verbs.context.ops.post_recv = Some(calls.post_recv);
        let context = Box::leak(Box::new(Context {
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
        }));
        Ok(&raw mut context.verbs.context)
    }

    /// The card that C means.
    ///
    /// # Safety
    /// The pointer is one that [`Context::open`] returned and that is not closed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        let offset = offset_of!(verbs_context, context);
        // SAFETY: the member of a `verbs_context`, which is the first member of a `Context`.
        unsafe { &*context.byte_sub(offset).cast::<Context>() }
    }

    /// How C names it.
    pub fn verbs(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// By number: the addresses of which this protection domain has a handle.
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

    /// When a request that is posted now arrives and is acknowledged, where cards have times.
    pub fn times(&self, request: &Request) -> Option<Times> {
        if request.kind != Kind::Read {
            return self.wire.sends(request.bytes());
        }
        // The bytes leave by the wire of the card whose memory is read; of nobody's memory nothing leaves.
        match self.peers.find(&request.gid, request.number) {
            Some(peer) => peer.wire.answers(request.bytes()),
            None => self.wire.answers(0),
        }
    }
}

/// Closes a card.
///
/// # Safety
/// The context is open; nothing that was made of it is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let offset = offset_of!(verbs_context, context);
    // SAFETY: leaked from a box by `open`.
    let context = unsafe { Box::from_raw(context.byte_sub(offset).cast::<Context>()) };
    // Queue pairs that the program has not destroyed go with their card, as a kernel would see to.
    for number in locked(&context.pairs).iter().flatten() {
        Shared::remove(&queue_name(&context.device.gid, *number));
    }
    0
}

/// What every card says of itself.
///
/// # Safety
/// The context is open, the place is C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, place: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's contract.
    let spec = &unsafe { Context::of(context) }.machine.spec;
    // SAFETY: numbers: zero is a value of each.
    let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
    for (to, from) in attributes.fw_ver.iter_mut().zip(b"0.0.0.0") {
        *to = *from as std::ffi::c_char;
    }
    attributes.max_mr_size = 1 << 40;
    attributes.page_size_cap = 4096;
    attributes.vendor_id = VENDOR;
    attributes.vendor_part_id = if spec.writes { 0xefa1 } else { 0xefa0 };
    attributes.max_qp = PAIRS as c_int;
    attributes.max_qp_wr = spec.depth as c_int;
    (attributes.max_sge, attributes.max_sge_rd) = (SEND_PIECES as c_int, 1);
    (attributes.max_cq, attributes.max_cqe) = (512, 32768);
    (attributes.max_mr, attributes.max_pd, attributes.max_ah) = (MOST as c_int, 256, 65535);
    (attributes.max_pkeys, attributes.phys_port_cnt) = (1, 1);
    // SAFETY: the caller's contract.
    unsafe { place.write(attributes) };
    0
}

/// Speed and width whose product is the line rate, as libfabric multiplies them.
fn speed(gigabits: f64) -> (u8, u8) {
    match gigabits as u32 {
        0..=100 => (32, 2),
        // 25 times 8: libfabric 1.17 knows no faster lane.
        101..=200 => (32, 4),
        _ => (128, 2),
    }
}

/// The port's attributes.
///
/// # Safety
/// The context is open, the place is C's and has this length.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    place: *mut ibv_port_attr,
    length: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract.
    let context = unsafe { Context::of(context) };
    // SAFETY: numbers: zero is a value of each.
    let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
    attributes.state = IBV_PORT_ACTIVE;
    attributes.gid_tbl_len = 1;
    attributes.max_msg_sz = MESSAGE;
    attributes.pkey_tbl_len = 1;
    attributes.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    (attributes.max_mtu, attributes.active_mtu) = (5, 5);
    let gigabits = context.machine.spec.figures.map_or(100.0, |figures| figures.line_rate_gbps);
    (attributes.active_speed, attributes.active_width) = speed(gigabits);
    // SAFETY: as long as both are; older programs have the shorter one.
    unsafe {
        let bytes = length.min(size_of::<ibv_port_attr>());
        std::ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), place.cast(), bytes);
    }
    0
}

/// A protection domain of the card.
///
/// # Safety
/// The context is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's contract.
    let handle = unsafe { Context::of(context) }.domains.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(ibv_pd { context, handle }))
}

/// Frees it.
///
/// # Safety
/// Made by [`ibv_alloc_pd`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(domain) });
    0
}

/// Registers memory.
///
/// # Safety
/// As [`ibv_reg_mr_iova2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract.
    unsafe { ibv_reg_mr_iova2(domain, address, length, address.expose_provenance() as u64, access as c_uint) }
}

/// Registers memory under its own address.
///
/// # Safety
/// The domain is one of [`ibv_alloc_pd`], and the memory is C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let start = address.expose_provenance() as u64;
    if iova != start {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's contract.
    let context = unsafe { Context::of((*domain).context) };
    if length == 0 || start.checked_add(length as u64).is_none() {
        return refuse(libc::EINVAL);
    }
    // A card pins what it registers. Addresses of a GPU are no memory of this process: without GPUDirect they cannot be pinned.
    if !memory::is_there(start) || !memory::is_there(start + (length as u64 - 1)) {
        return refuse(libc::EFAULT);
    }
    if context.machine.refuses_memory() {
        return refuse(libc::ENOMEM);
    }
    let index = {
        let mut free = locked(&context.free_keys);
        match free.1.pop() {
            Some(index) => index,
            // Place 0 stays empty, so that no key is small.
            None if free.0 + 1 < MOST => {
                free.0 += 1;
                free.0
            }
            None => return refuse(libc::ENOMEM),
        }
    };
    let random = context.machine.random(start ^ index as u64) as u32;
    // SAFETY: the caller's.
    let domain_number = unsafe { (*domain).handle };
    let range = Range { address: start, bytes: length as u64, access, domain: domain_number };
    let key = context.table.add(index, random, range);
    Box::into_raw(Box::new(ibv_mr {
        context: context.verbs(),
        pd: domain,
        addr: address,
        length,
        handle: index as u32,
        lkey: memory::local_key(key),
        rkey: key,
    }))
}

/// Takes a registration back.
///
/// # Safety
/// Made by [`ibv_reg_mr_iova2`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(registration: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's contract.
    let registration = unsafe { Box::from_raw(registration) };
    // SAFETY: its context is open.
    let context = unsafe { Context::of(registration.context) };
    if let Some(index) = context.table.remove(registration.rkey) {
        locked(&context.free_keys).1.push(index);
    }
    0
}

/// A handle of an address.
///
/// # Safety
/// The domain is one of [`ibv_alloc_pd`], the attributes are C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's; a GID is bytes in any case.
    let (context, gid) = unsafe { (Context::of((*domain).context), (*attributes).grh.dgid.raw) };
    // The owners first: who sees the handles' new version looks for this one among them.
    let mut owners = locked(&context.owners);
    let Some(number) = context.handles.add(&gid) else { return refuse(libc::ENOMEM) };
    // SAFETY: the caller's.
    owners.push((number, unsafe { (*domain).handle }, gid));
    drop(owners);
    let verbs = ibv_ah { context: context.verbs(), pd: domain, handle: u32::from(number) };
    Box::into_raw(Box::new(Handle { verbs, gid, number })).cast()
}

/// Destroys a handle.
///
/// # Safety
/// Made by [`ibv_create_ah`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's contract.
    let handle = unsafe { Box::from_raw(handle.cast::<Handle>()) };
    // SAFETY: its context is open.
    let context = unsafe { Context::of(handle.verbs.context) };
    let mut owners = locked(&context.owners);
    let this = (handle.number, handle.domain(), handle.gid);
    if let Some(place) = owners.iter().position(|owner| *owner == this) {
        owners.swap_remove(place);
    }
    context.handles.remove(handle.number);
    0
}
