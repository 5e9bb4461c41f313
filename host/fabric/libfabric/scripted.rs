//! A rail whose provider follows a script, for behaviour that real providers rarely show or cannot be made to show.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use libfabric_sys as sys;

use super::contexts::Pool;
use super::info::InfoList;
use super::objects::{Core, Object};
use super::{LibfabricRail, RailOptions};

/// Result of one call of `fi_cq_read`.
pub(super) enum Reading {
    Entries(Vec<sys::fi_cq_data_entry>),
    Error(c_int),
    /// A pending error entry that cannot be read.
    LostError,
}

/// Answers of the provider, in order. Afterwards it accepts every receive, and the queue is empty.
#[derive(Default)]
pub(super) struct Script {
    /// Answers to `fi_recvmsg`.
    pub recv: Vec<isize>,
    /// Answers to `fi_cq_read`.
    pub readings: Vec<Reading>,
    /// Contexts that `fi_recvmsg` has accepted.
    pub posted: Vec<*mut c_void>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

impl Script {
    /// Calls `look` with the script of this test, to read or change it.
    pub fn now<T>(look: impl FnOnce(&mut Script) -> T) -> T {
        SCRIPT.with_borrow_mut(look)
    }
}

fn next<T>(answers: &mut Vec<T>) -> Option<T> {
    if answers.is_empty() { None } else { Some(answers.remove(0)) }
}

unsafe extern "C" fn close(_: *mut sys::fid) -> c_int {
    0
}

/// Behaves like efa-direct: refuses a segment without a descriptor, and requires a completion for a receive.
unsafe extern "C" fn recvmsg(_: *mut sys::fid_ep, message: *const sys::fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's message is valid during the call.
    let message = unsafe { &*message };
    // SAFETY: there is one descriptor per segment, if there are any.
    if message.iov_count > 0 && (message.desc.is_null() || unsafe { *message.desc }.is_null()) {
        return -(sys::FI_EINVAL as isize);
    }
    assert_eq!(flags, sys::FI_COMPLETION);
    Script::now(|script| {
        let answer = next(&mut script.recv).unwrap_or(0);
        if answer == 0 {
            script.posted.push(message.context);
        }
        answer
    })
}

unsafe extern "C" fn read(_: *mut sys::fid_cq, room: *mut c_void, count: usize) -> isize {
    match Script::now(|script| next(&mut script.readings)) {
        None => -(sys::FI_EAGAIN as isize),
        Some(Reading::Error(code)) => -(code as isize),
        Some(Reading::LostError) => -(sys::FI_EAVAIL as isize),
        Some(Reading::Entries(entries)) => {
            assert!(entries.len() <= count, "the script has more than fits");
            // SAFETY: the caller's buffer has `count` entries of this format.
            unsafe { entries.as_ptr().copy_to(room.cast(), entries.len()) };
            entries.len() as isize
        }
    }
}

/// Returns an object or a table that is all zero and is never freed.
fn blank<T>() -> &'static mut T {
    // SAFETY: libfabric's objects and tables are integers, pointers and optional functions, which may all be zero.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// Creates an object whose close function does nothing.
fn object<T: super::objects::Fid>() -> (Object<T>, &'static mut T) {
    let (object, ops) = (blank::<T>(), blank::<sys::fi_ops>());
    ops.close = Some(close);
    let place = NonNull::from(&mut *object);
    // SAFETY: every object starts with its `fid`.
    unsafe { place.cast::<sys::fid>().as_mut() }.ops = ops;
    (Object::scripted(place), object)
}

/// Creates a rail with `receives` receives for immediates. Returns `None`, and prints the reason, if there is no
/// libfabric to allocate its `fi_info`.
pub(super) fn rail(receives: usize, script: Script) -> Option<LibfabricRail> {
    let Ok(library) = sys::library() else {
        eprintln!("skipped: no libfabric");
        return None;
    };
    let (endpoint, ep) = object::<sys::fid_ep>();
    let (queue, cq) = object::<sys::fid_cq>();
    ep.ops = blank();
    ep.msg = blank::<sys::fi_ops_msg>();
    cq.ops = blank::<sys::fi_ops_cq>();
    // SAFETY: the tables were just allocated above.
    unsafe {
        (*ep.msg).recvmsg = Some(recvmsg);
        (*cq.ops).read = Some(read);
    }
    Script::now(|now| *now = script);
    let core = Core {
        endpoint: std::sync::Mutex::new(Some(endpoint)),
        addresses: object().0,
        queue,
        domain: object().0,
        _fabric: object().0,
        info: InfoList::blank(library)?,
        gpu_memory: super::GpuMemory::NotOffered,
        contexts: Pool::new(8, receives),
    };
    Some(LibfabricRail::over("scripted".to_owned(), core, &RailOptions::default()).expect("opened"))
}
