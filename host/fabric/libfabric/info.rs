//! Discovery of providers: `fi_getinfo` with the only set of hints with which ginlab opens rails.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libfabric_sys as sys;

use super::Level;
use super::errors::{self, FailedOperation};
use super::shared_memory;
use crate::FabricError;
use ginlab_topology::pci::PciAddress;

/// Requirements of a rail on a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProviderRequirements<'a> {
    pub provider: &'a str,
    pub fabric: Option<&'a str>,
    pub domain: Option<&'a str>,
    pub level: Level,
    /// Whether to request memory of CUDA devices (FI_HMEM).
    pub cuda_memory: bool,
    /// Whether to accept a provider that consumes a posted receive for each immediate (FI_RX_CQ_DATA).
    pub posted_receives: bool,
    /// Whether to also request messages (FI_MSG).
    pub messages: bool,
}

/// A list of entries, freed when dropped. Entries are always allocated by libfabric, which knows their size.
pub(crate) struct InfoList {
    first: NonNull<sys::fi_info>,
    library: &'static sys::LibfabricLibrary,
}

// SAFETY: the list is plain memory allocated by libfabric, and none of it is bound to a thread.
unsafe impl Send for InfoList {}
// SAFETY: shared references only read it.
unsafe impl Sync for InfoList {}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: the list came from `fi_getinfo` or `fi_dupinfo` and is freed once, here.
        unsafe { (self.library.fi_freeinfo)(self.as_ptr()) }
    }
}

impl InfoList {
    /// Returns the entries in libfabric's order, best first.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut next = self.as_ptr();
        std::iter::from_fn(move || {
            let info = NonNull::new(next)?;
            // SAFETY: `next` is an entry of the list, which is valid as long as `self`.
            next = unsafe { info.as_ref() }.next;
            Some(Entry { info, library: self.library, list: PhantomData })
        })
    }

    /// Returns the first entry.
    pub fn first(&self) -> Entry<'_> {
        Entry { info: self.first, library: self.library, list: PhantomData }
    }

    /// Returns the list for the open calls, which require a mutable pointer but only read the list.
    pub fn as_ptr(&self) -> *mut sys::fi_info {
        self.first.as_ptr()
    }

    /// Returns the library that allocated the list.
    pub fn library(&self) -> &'static sys::LibfabricLibrary {
        self.library
    }

    /// Returns an entry whose attributes are all zero, or `None` if there is no memory.
    pub fn blank(library: &'static sys::LibfabricLibrary) -> Option<Self> {
        // SAFETY: null requests an empty entry, which the caller owns.
        NonNull::new(unsafe { (library.fi_dupinfo)(ptr::null()) }).map(|first| Self { first, library })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    info: NonNull<sys::fi_info>,
    library: &'static sys::LibfabricLibrary,
    list: PhantomData<&'a InfoList>,
}

/// Returns the string, or an empty string for a null pointer.
fn string<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: strings in `fi_info` are C strings that are valid as long as the list, which the callers hold.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

impl<'a> Entry<'a> {
    pub fn info(self) -> &'a sys::fi_info {
        // SAFETY: the entry's list is valid for `'a` and is not changed.
        unsafe { self.info.as_ref() }
    }

    pub fn domain(self) -> &'a sys::fi_domain_attr {
        // SAFETY: every entry that `fi_getinfo` returns has this attribute.
        unsafe { &*self.info().domain_attr }
    }

    pub fn endpoint(self) -> &'a sys::fi_ep_attr {
        // SAFETY: every entry that `fi_getinfo` returns has this attribute.
        unsafe { &*self.info().ep_attr }
    }

    pub fn transmit(self) -> &'a sys::fi_tx_attr {
        // SAFETY: every entry that `fi_getinfo` returns has this attribute.
        unsafe { &*self.info().tx_attr }
    }

    pub fn receive(self) -> &'a sys::fi_rx_attr {
        // SAFETY: every entry that `fi_getinfo` returns has this attribute.
        unsafe { &*self.info().rx_attr }
    }

    fn fabric(self) -> &'a sys::fi_fabric_attr {
        // SAFETY: every entry that `fi_getinfo` returns has this attribute.
        unsafe { &*self.info().fabric_attr }
    }

    pub fn provider(self) -> String {
        string(self.fabric().prov_name).into_owned()
    }

    /// Returns the provider's version, such as `117.0`.
    pub fn provider_version(self) -> String {
        sys::Dotted(self.fabric().prov_version).to_string()
    }

    pub fn fabric_name(self) -> String {
        string(self.fabric().name).into_owned()
    }

    pub fn domain_name(self) -> String {
        string(self.domain().name).into_owned()
    }

    /// Returns the local IP address, for providers over IP.
    pub fn ip(self) -> Option<IpAddr> {
        let info = self.info();
        // An IPv4 or IPv6 socket address: family, port, then the address at byte 4 or 8.
        let (offset, length) = match info.addr_format {
            sys::FI_SOCKADDR_IN => (4, 4),
            sys::FI_SOCKADDR_IN6 => (8, 16),
            _ => return None,
        };
        if info.src_addr.is_null() || info.src_addrlen < offset + length {
            return None;
        }
        // SAFETY: `src_addr` has `src_addrlen` bytes, checked above.
        let bytes = unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>().add(offset), length) };
        match length {
            4 => <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
            _ => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        }
    }

    fn nic(self) -> Option<&'a sys::fid_nic> {
        // SAFETY: the pointer is null or refers to a NIC description that is valid as long as the entry.
        unsafe { self.info().nic.as_ref() }
    }

    /// Returns the line rate in bits per second, if the provider reports it.
    pub fn link_bits_per_second(self) -> Option<u64> {
        // SAFETY: the pointer is null or refers to a part of the NIC description.
        let link = unsafe { self.nic()?.link_attr.as_ref() }?;
        (link.speed > 0).then_some(link.speed as u64)
    }

    /// Returns the PCI address of the NIC, if the provider reports it.
    pub fn pci(self) -> Option<PciAddress> {
        // SAFETY: the pointer is null or refers to a part of the NIC description.
        let bus = unsafe { self.nic()?.bus_attr.as_ref() }?;
        if bus.bus_type != sys::FI_BUS_PCI {
            return None;
        }
        // SAFETY: the type indicates that the PCI member of the union is the one in use.
        let sys::fi_pci_attr { domain_id, bus_id: bus, device_id: device, function_id: function } =
            unsafe { bus.attr.pci };
        Some(PciAddress { domain: domain_id.into(), bus, device, function })
    }

    /// Returns the entry in libfabric's printed form, as `fi_info -v` prints it.
    pub fn text(self) -> String {
        // The longest entries have 4 KiB; libfabric truncates longer ones.
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: the buffer has the given length, and the entry has the type that the last argument specifies.
        unsafe {
            let (room, entry) = (text.as_mut_ptr().cast(), self.info.as_ptr().cast());
            (self.library.fi_tostr_r)(room, text.len(), entry, sys::FI_TYPE_INFO)
        };
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns a list that contains only this entry, for opening.
    pub fn duplicate(self) -> Option<InfoList> {
        // SAFETY: the entry is valid, and the new list owns the copy.
        let first = NonNull::new(unsafe { (self.library.fi_dupinfo)(self.info.as_ptr()) })?;
        Some(InfoList { first, library: self.library })
    }
}

/// Queries libfabric. The error is its positive code.
fn get_info(library: &'static sys::LibfabricLibrary, flags: u64, hints: *const sys::fi_info) -> Result<InfoList, i64> {
    // Serialized: ranks in one process query concurrently, and two concurrent queries have crashed libfabric 1.20's EFA
    // provider. Poisoning is ignored, because the lock protects no data.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut list, none) = (ptr::null_mut(), ptr::null());
    // SAFETY: the hints are null or valid for the call, and the caller owns the list if the call succeeds.
    let code = unsafe { (library.fi_getinfo)(library.api(), none, none, flags, hints, &mut list) };
    match NonNull::new(list) {
        Some(first) if code == 0 => Ok(InfoList { first, library }),
        _ if code == 0 => Err(i64::from(sys::FI_ENODATA)),
        _ => Err(i64::from(code)),
    }
}

/// Returns all providers of this libfabric, whether or not they are usable here.
pub(crate) fn all_providers() -> Result<InfoList, FabricError> {
    get_info(super::library()?, sys::FI_PROV_ATTR_ONLY, ptr::null()).map_err(|code| {
        errors::error("libfabric", FailedOperation::Opening, "fi_getinfo for the list of providers", code)
    })
}

/// Returns all entries that any provider offers here, whether or not ginlab can use them.
pub(crate) fn everything() -> Result<InfoList, FabricError> {
    get_info(super::library()?, 0, ptr::null())
        .map_err(|code| errors::error("libfabric", FailedOperation::Opening, "fi_getinfo for everything", code))
}

/// Capabilities that every rail requires.
const ACCESS: u64 = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

/// Returns the entries that meet the requirements. If there are none, returns an error with the reason.
pub(crate) fn query(wanted: &ProviderRequirements<'_>) -> Result<InfoList, FabricError> {
    let library = super::library()?;
    let fail = |code: i64| {
        const WHAT: &str = "fi_getinfo for reliable datagrams with RMA";
        let none = code.abs() == i64::from(sys::FI_ENODATA);
        match none.then(|| shared_memory::why_nothing(wanted.provider)).flatten() {
            Some(why) => errors::refused(wanted.provider, FailedOperation::Opening, WHAT, sys::FI_ENOSPC, why),
            None => errors::error(wanted.provider, FailedOperation::Opening, WHAT, code),
        }
    };
    let hints = hints(wanted, library).map_err(|code| fail(i64::from(code)))?;
    get_info(library, 0, hints.as_ptr()).map_err(fail)
}

/// Copies a string so that libfabric frees it with the entry that holds it. Returns null for `None`.
fn owned(text: Option<&str>) -> Result<*mut c_char, c_int> {
    let Some(text) = text else { return Ok(ptr::null_mut()) };
    let text = CString::new(text).map_err(|_| sys::FI_EINVAL)?;
    // SAFETY: `text` is a C string. The copy is allocated by `malloc`, like libfabric's own strings.
    let copy = unsafe { nix::libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(sys::FI_ENOMEM) } else { Ok(copy) }
}

/// Converts the requirements to libfabric's hints. The error is libfabric's code.
fn hints(wanted: &ProviderRequirements<'_>, library: &'static sys::LibfabricLibrary) -> Result<InfoList, c_int> {
    let hints = InfoList::blank(library).ok_or(sys::FI_ENOMEM)?;
    let mut caps = sys::FI_RMA | ACCESS;
    let mut mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
    // Each bit means that ginlab supports the mode; the provider clears those that it does not need. The progress model
    // is left open, because the proxy polls continuously and manual progress is as good.
    let mut mr_mode =
        sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY | sys::FI_MR_ENDPOINT;
    if wanted.cuda_memory {
        caps |= sys::FI_HMEM;
        mr_mode |= sys::FI_MR_HMEM;
    }
    if wanted.messages {
        caps |= sys::FI_MSG | sys::FI_SEND | sys::FI_RECV;
    }
    if wanted.posted_receives {
        caps |= sys::FI_MSG | sys::FI_RECV;
        mode |= sys::FI_RX_CQ_DATA;
    }
    let (provider, fabric) = (owned(Some(wanted.provider))?, owned(wanted.fabric)?);
    let name = owned(wanted.domain)?;
    // SAFETY: a blank entry has all its attributes, and no other code has access to it yet. It takes ownership of the
    // strings.
    unsafe {
        let info = hints.as_ptr();
        ((*info).caps, (*info).mode) = (caps, mode);
        (*(*info).tx_attr).op_flags = wanted.level.flag();
        if wanted.messages {
            // Receives are identified by their order. efa-direct does not offer an order, so its messages may arrive in
            // any.
            ((*(*info).tx_attr).msg_order, (*(*info).rx_attr).msg_order) = (sys::FI_ORDER_SAS, sys::FI_ORDER_SAS);
        }
        (*(*info).ep_attr).type_ = sys::FI_EP_RDM;
        let domain = (*info).domain_attr;
        (*domain).name = name;
        (*domain).threading = sys::FI_THREAD_DOMAIN;
        (*domain).resource_mgmt = sys::FI_RM_ENABLED;
        (*domain).mr_mode = mr_mode;
        ((*(*info).fabric_attr).prov_name, (*(*info).fabric_attr).name) = (provider, fabric);
    }
    Ok(hints)
}
