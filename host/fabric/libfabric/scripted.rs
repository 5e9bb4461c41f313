//! A rail whose provider follows a script: for what real providers do rarely, and not when a test wants it.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use libfabric_sys as sys;

use super::contexts::Pool;
use super::info::InfoList;
use super::objects::{Core, Object};
use super::{LibfabricRail, RailOptions};

/// What one call of `fi_cq_read` gives.
pub(super) enum Reading {
    /// These completions.
    Entries(Vec<sys::fi_cq_data_entry>),
    /// This error.
    Error(c_int),
    /// An error entry, which cannot be read then.
    LostError,
}

/// What the provider answers, first things first; afterwards every receive is taken and the queue is empty.
#[derive(Default)]
pub(super) struct Script {
    /// Answers to `fi_recv`.
    pub recv: Vec<isize>,
    /// Answers to `fi_cq_read`.
    pub readings: Vec<Reading>,
    /// Contexts that `fi_recv` has taken.
    pub posted: Vec<*mut c_void>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

impl Script {
    /// Looks into the script of this test, or changes it.
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

unsafe extern "C" fn recv(
    _: *mut sys::fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    Script::now(|script| {
        let answer = next(&mut script.recv).unwrap_or(0);
        if answer == 0 {
            script.posted.push(context);
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
            // SAFETY: the caller's room has `count` entries of this format.
            unsafe { entries.as_ptr().copy_to(room.cast(), entries.len()) };
            entries.len() as isize
        }
    }
}

/// An object or a table, all zero, that lives as long as the program.
fn blank<T>() -> &'static mut T {
    // SAFETY: libfabric's objects and tables are integers, pointers and optional functions, which may all be zero.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// An object of ours.
fn object<T: super::objects::Fid>() -> (Object<T>, &'static mut T) {
    let (object, ops) = (blank::<T>(), blank::<sys::fi_ops>());
    ops.close = Some(close);
    let place = NonNull::from(&mut *object);
    // SAFETY: every object begins with its fid.
    unsafe { place.cast::<sys::fid>().as_mut() }.ops = ops;
    (Object::scripted(place), object)
}

/// A rail with so many receives for immediates; `None`, with the reason, where there is no libfabric to make its `fi_info`.
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
    // SAFETY: tables of ours, set just now.
    unsafe {
        (*ep.msg).recv = Some(recv);
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
