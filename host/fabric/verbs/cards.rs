//! The EFA devices of this machine, by name.

use super::errors;
use crate::domain::{AddressFamily, Domain, IMMEDIATE_BYTES};
use crate::{FabricError, soft};
use ginlab_topology::pci::PciAddress;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use verbs_sys::{VerbsLibrary, ibv_context, ibv_device, ibv_port_attr};

/// Prefix of provider names that request verbs rails: `efa-verbs`, or over software NICs `efa-verbs/soft:p5`.
pub const PREFIX: &str = "efa-verbs";

/// Returns whether a provider's name requests verbs rails.
#[must_use]
pub fn is_asked(provider: &str) -> bool {
    provider.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with("/soft"))
}

/// Returns the functions of the libraries, which are looked up once.
pub(super) fn library() -> Result<&'static VerbsLibrary, FabricError> {
    static LIBRARY: OnceLock<Result<VerbsLibrary, String>> = OnceLock::new();
    LIBRARY.get_or_init(VerbsLibrary::load).as_ref().map_err(|why| errors::missing(why))
}

/// A list of devices, freed when dropped.
pub(super) struct List(*mut *mut ibv_device);

impl List {
    pub(super) fn new() -> Result<List, FabricError> {
        let library = library()?;
        // SAFETY: C allocates the list, and null means that its length is not needed.
        let list = unsafe { (library.ibv_get_device_list)(std::ptr::null_mut()) };
        if list.is_null() { Err(errors::call(PREFIX, "ibv_get_device_list", None)) } else { Ok(List(list)) }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list ends with null and lives as long as `self`.
        (0..).map(|index| unsafe { *self.0.add(index) }).take_while(|device| !device.is_null())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Ok(library) = library() {
            // SAFETY: the list was made by `ibv_get_device_list` and is freed once.
            unsafe { (library.ibv_free_device_list)(self.0) };
        }
    }
}

pub(super) fn name(device: *mut ibv_device) -> String {
    // SAFETY: the device belongs to a list that is not freed.
    unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned()
}

/// Returns the device's PCI address according to sysfs.
fn place(device: *mut ibv_device) -> Option<PciAddress> {
    // SAFETY: the device belongs to a list that is not freed, and its path is a C string.
    let text = unsafe { CStr::from_ptr((&raw const (*device).ibdev_path).cast::<c_char>()) };
    let path = Path::new(OsStr::from_bytes(text.to_bytes())).join("device").canonicalize().ok()?;
    path.file_name()?.to_str()?.parse().ok()
}

/// Returns the attributes of the port of an open device.
fn port(context: *mut ibv_context) -> Option<ibv_port_attr> {
    let library = library().ok()?;
    // SAFETY: the struct consists of integers, for which zero is valid.
    let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, and `port` is as long as the longest form of the struct.
    let code = unsafe { (library.ibv_query_port)(context, 1, &mut port) };
    (code == 0).then_some(port)
}

/// Returns the maximum number of bytes of a datagram of an open device, as reported by the port.
pub(super) fn max_message(context: *mut ibv_context) -> Option<u32> {
    port(context).map(|port| port.max_msg_sz)
}

/// Returns the line rate of an open device in bits per second, as reported by the port.
pub(super) fn line_rate(context: *mut ibv_context) -> Option<u64> {
    let port = port(context)?;
    // In units of 100 Mb/s: InfiniBand's rate per lane, and number of lanes.
    let lane = match port.active_speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return None,
    };
    let lanes = match port.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    Some(lane * lanes * 100_000_000)
}

/// Returns the EFA devices on which rails can be opened, with this run's provider name. Other verbs devices are not
/// included.
///
/// # Errors
/// Returns an error if there is no libefa that is new enough, if the devices cannot be listed, or if none is found and
/// one cannot be opened.
pub fn cards() -> Result<Vec<Domain>, FabricError> {
    let library = library()?;
    let provider = label();
    let mut found = Vec::new();
    let mut unopened = None;
    for device in List::new()?.iter() {
        // SAFETY: the device belongs to a list that is not freed.
        let context = unsafe { (library.ibv_open_device)(device) };
        if context.is_null() {
            unopened.get_or_insert_with(|| errors::call(&provider, format!("opening device {}", name(device)), None));
            continue;
        }
        // SAFETY: the struct consists of integers, for which zero is valid.
        let mut attributes = unsafe { std::mem::zeroed() };
        let bytes = size_of_val(&attributes) as u32;
        // SAFETY: the context is open, and `attributes` has the given length.
        let is_efa = unsafe { (library.efadv_query_device)(context, &mut attributes, bytes) } == 0;
        let rate = line_rate(context);
        // SAFETY: the context was opened above, and no object was created in it.
        unsafe { (library.ibv_close_device)(context) };
        if is_efa {
            found.push(Domain {
                provider: provider.clone(),
                fabric: PREFIX.to_owned(),
                name: name(device),
                family: AddressFamily::Efa,
                address: None,
                link_bits_per_second: rate,
                pci: place(device),
                immediate_bytes: IMMEDIATE_BYTES,
            });
        }
    }
    match unopened {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Returns the provider name of these rails in result rows: `efa-verbs`, `efa-verbs/soft:p5`.
pub(crate) fn label() -> String {
    match soft::label() {
        Some(label) => format!("{PREFIX}{}", label.trim_start_matches("efa")),
        None => PREFIX.to_owned(),
    }
}
