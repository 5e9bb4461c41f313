//! An open EFA device: its protection domain, and the address handles of peers.

use super::cards::{List, PREFIX, label, library, line_rate, max_message, name};
use super::errors;
use crate::{FabricError, mistake};
use efa_queue::To;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use verbs_sys as sys;

/// Size of the address of a queue pair: GID of its device, queue pair number and key.
const ADDRESS: usize = 24;

/// An open device with a protection domain. Objects created from it keep it open. It can be used from any thread.
#[derive(Clone)]
pub struct Verbs(pub(super) Arc<Device>);

pub(super) struct Device {
    pub library: &'static sys::VerbsLibrary,
    pub context: *mut sys::ibv_context,
    pub domain: *mut sys::ibv_pd,
    /// Name of the rail for messages: `efa-verbs:rdmap79s0`.
    pub rail: String,
    pub attributes: sys::efadv_device_attr,
    pub gid: [u8; 16],
    pub link_bits_per_second: Option<u64>,
    handles: Mutex<HashMap<[u8; 16], Handle>>,
}

/// An address handle, and the number of peers on that device that use it.
struct Handle {
    handle: *mut sys::ibv_ah,
    number: u16,
    users: usize,
}

// SAFETY: verbs objects are not bound to a thread, and the functions lock shared state.
unsafe impl Send for Device {}
// SAFETY: verbs objects are not bound to a thread, and the functions lock shared state.
unsafe impl Sync for Device {}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.rail)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the objects were created in this context. Pairs and regions no longer exist, since each holds a
        // reference to the device.
        unsafe {
            for handle in handles.values() {
                (self.library.ibv_destroy_ah)(handle.handle);
            }
            if !self.domain.is_null() {
                (self.library.ibv_dealloc_pd)(self.domain);
            }
            (self.library.ibv_close_device)(self.context);
        }
    }
}

impl Verbs {
    /// Opens the device of this name (`rdmap79s0`).
    ///
    /// # Errors
    /// Returns an error if no sufficiently new libefa or no such device exists, if it is not an EFA device, or if a
    /// call fails.
    pub fn open(card: &str) -> Result<Verbs, FabricError> {
        let library = library()?;
        let list = List::new()?;
        let device = list.iter().find(|device| name(*device) == card).ok_or_else(|| {
            let names: Vec<_> = list.iter().map(name).collect();
            mistake(
                &label(),
                format!("opening {card:?}"),
                format!("no such EFA device; available: {}", names.join(", ")),
            )
        })?;
        let rail = format!("{}:{card}", label());
        // SAFETY: the device belongs to a list that is not freed. The calls below are made in the order that the manual
        // prescribes.
        let context = unsafe { (library.ibv_open_device)(device) };
        if context.is_null() {
            return Err(errors::call(&rail, "ibv_open_device", None));
        }
        // SAFETY: the struct consists of integers, for which zero is valid.
        let attributes = unsafe { std::mem::zeroed() };
        let mut opened = Device {
            library,
            context,
            domain: std::ptr::null_mut(),
            rail,
            attributes,
            gid: [0; 16],
            link_bits_per_second: line_rate(context),
            handles: Mutex::default(),
        };
        let bytes = size_of::<sys::efadv_device_attr>() as u32;
        // SAFETY: the context is open, and the attributes have the given length.
        let code = unsafe { (library.efadv_query_device)(context, &mut opened.attributes, bytes) };
        if code != 0 {
            return Err(errors::call(&opened.rail, "efadv_query_device (is it an EFA device?)", Some(code)));
        }
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and `gid` is a local variable.
        if unsafe { (library.ibv_query_gid)(context, 1, 0, &mut gid) } != 0 {
            return Err(errors::call(&opened.rail, "ibv_query_gid", None));
        }
        // SAFETY: the union always contains bytes.
        opened.gid = unsafe { gid.raw };
        // SAFETY: the context is open.
        opened.domain = unsafe { (library.ibv_alloc_pd)(context) };
        if opened.domain.is_null() {
            return Err(errors::call(&opened.rail, "ibv_alloc_pd", None));
        }
        Ok(Verbs(Arc::new(opened)))
    }

    /// Returns the rail's name for messages: `efa-verbs:rdmap79s0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.rail
    }

    /// Returns the line rate in bits per second, if the port reports it.
    #[must_use]
    pub fn link_bits_per_second(&self) -> Option<u64> {
        self.0.link_bits_per_second
    }

    /// Returns whether the device supports RDMA write. Devices of a p4d do not.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.0.attributes.device_caps & sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE != 0
    }

    /// Returns whether a write's immediate can arrive without a receive.
    #[must_use]
    pub fn unsolicited(&self) -> bool {
        self.0.attributes.device_caps & sys::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV != 0
    }

    /// Returns whether the device has completion counters and this libefa supports them.
    #[must_use]
    pub fn counters(&self) -> bool {
        self.0.attributes.device_caps & sys::EFADV_DEVICE_ATTR_CAPS_COMP_CNTR != 0 && self.0.library.counters.is_some()
    }

    /// Returns the maximum number of bytes of one write or read.
    #[must_use]
    pub fn max_transfer_bytes(&self) -> u64 {
        self.0.attributes.max_rdma_size.into()
    }

    /// Returns the maximum number of bytes of a datagram.
    ///
    /// # Errors
    /// Returns an error if the port does not report a number of at most 16 bits.
    pub fn max_message_bytes(&self) -> Result<u16, FabricError> {
        let most = max_message(self.0.context).and_then(|most| u16::try_from(most).ok()).filter(|most| *most > 0);
        most.ok_or_else(|| errors::call(&self.0.rail, "ibv_query_port (maximum size of a message)", None))
    }

    /// Returns the maximum number of requests in a queue.
    #[must_use]
    pub fn max_depth(&self) -> u32 {
        self.0.attributes.max_sq_wr
    }

    /// Returns the destination of requests to this address. The device keeps a handle of the peer's device until
    /// [`Verbs::release`].
    ///
    /// # Errors
    /// Returns an error if the address is invalid, or if the handle cannot be created.
    pub fn handle(&self, address: &[u8]) -> Result<To, FabricError> {
        let (gid, pair, key) = split(address).ok_or_else(|| self.no_address(address))?;
        let mut handles = self.0.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match handles.entry(gid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(self.make_handle(gid)?),
        };
        handle.users += 1;
        Ok(To { handle: handle.number, pair, key })
    }

    fn make_handle(&self, gid: [u8; 16]) -> Result<Handle, FabricError> {
        let library = self.0.library;
        // SAFETY: the struct consists of integers, for which zero is valid.
        let mut attributes: sys::ibv_ah_attr = unsafe { std::mem::zeroed() };
        (attributes.port_num, attributes.is_global) = (1, 1);
        attributes.grh.dgid = sys::ibv_gid { raw: gid };
        // SAFETY: the protection domain exists.
        let handle = unsafe { (library.ibv_create_ah)(self.0.domain, &mut attributes) };
        if handle.is_null() {
            return Err(errors::call(&self.0.rail, "ibv_create_ah", None));
        }
        let mut said = sys::efadv_ah_attr { comp_mask: 0, ahn: 0, reserved: [0; 6] };
        // SAFETY: the handle was just created, and `said` has the given length.
        let code = unsafe { (library.efadv_query_ah)(handle, &mut said, size_of::<sys::efadv_ah_attr>() as u32) };
        if code != 0 {
            // SAFETY: the handle was created above, and no other code uses it.
            unsafe { (library.ibv_destroy_ah)(handle) };
            return Err(errors::call(&self.0.rail, "efadv_query_ah", Some(code)));
        }
        Ok(Handle { handle, number: said.ahn, users: 0 })
    }

    /// Releases the handle of a removed peer with this address. Destroys it with the last peer on that device.
    pub fn release(&self, address: &[u8]) {
        let Some((gid, ..)) = split(address) else { return };
        let mut handles = self.0.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut known) = handles.entry(gid) {
            known.get_mut().users -= 1;
            if known.get().users == 0 {
                // SAFETY: the handle was created by `make_handle`. The caller guarantees that no request to that device
                // is posted.
                unsafe { (self.0.library.ibv_destroy_ah)(known.remove().handle) };
            }
        }
    }

    #[cold]
    fn no_address(&self, address: &[u8]) -> FabricError {
        let text =
            format!("an address of {} B is not one of {PREFIX}, whose addresses have {ADDRESS} B", address.len());
        mistake(&self.0.rail, "adding a peer", text)
    }
}

/// Returns the address of a queue pair, for its peers.
pub(super) fn join(gid: &[u8; 16], number: u32, key: u32) -> Vec<u8> {
    [&gid[..], &number.to_le_bytes(), &key.to_le_bytes()].concat()
}

fn split(address: &[u8]) -> Option<([u8; 16], u16, u32)> {
    let (gid, rest) = address.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let key = u32::from_le_bytes(rest.try_into().ok()?);
    Some((*gid, u16::try_from(u32::from_le_bytes(*number)).ok()?, key))
}
