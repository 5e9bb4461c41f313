//! Completion channels: file descriptors that become readable when a completion queue for which C has requested a
//! notification gets a completion.
//!
//! The processes of peers store arrivals without notifying this process. A thread of this process (`engine`) therefore
//! polls each queue that has a channel, and writes the event.

use crate::abi::*;
use crate::context::refuse;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// A channel. The part visible to C comes first.
#[repr(C)]
pub struct CompletionChannel {
    verbs: UnsafeCell<ibv_comp_channel>,
    /// Events in the kernel driver's format: the address of the queue, in 8 bytes. C may read them directly.
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

// SAFETY: C's part is written before the channel is shared, except the count, which is changed atomically. The ends of
// the pipe are descriptors.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Returns the channel of a C pointer.
    ///
    /// # Safety
    /// `channel` must be null or have been returned by [`ibv_create_comp_channel`], and not be destroyed.
    pub unsafe fn of<'a>(channel: *mut c_void) -> Option<&'a CompletionChannel> {
        // SAFETY: the caller guarantees that the pointer is null or valid; the part visible to C is the first member.
        unsafe { channel.cast::<CompletionChannel>().as_ref() }
    }

    /// Counts a queue that is created (1) or destroyed (-1) with this channel.
    pub fn refer(&self, change: c_int) {
        self.count().fetch_add(change, Ordering::Relaxed);
    }

    /// Returns the number of queues that use the channel.
    fn count(&self) -> &AtomicI32 {
        // SAFETY: the counter is valid and aligned as long as the channel exists. C does not access the member.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.verbs.get()).refcnt) }
    }

    /// Writes an event of `queue`.
    pub fn notify(&self, queue: *const c_void) {
        // A queue has one event per request of C, so a full pipe has the events of thousands of queues.
        let _ = (&self.writer).write(&(queue.expose_provenance() as u64).to_ne_bytes());
    }
}

/// Creates a channel.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let (reader, writer) = match std::io::pipe() {
        Ok(ends) => ends,
        Err(error) => return refuse(error.raw_os_error().unwrap_or(libc::EMFILE)),
    };
    // The thread that writes must not wait for a reader. SAFETY: the descriptor belongs to this pipe and is open.
    if unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return refuse(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    let verbs = UnsafeCell::new(ibv_comp_channel { context, fd: reader.as_raw_fd(), refcnt: 0 });
    Box::into_raw(Box::new(CompletionChannel { verbs, reader, writer })).cast()
}

/// Destroys a channel that no queue uses.
///
/// # Safety
/// `channel` must have been returned by [`ibv_create_comp_channel`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller guarantees that the channel is valid.
    if unsafe { CompletionChannel::of(channel.cast()) }
        .is_some_and(|channel| channel.count().load(Ordering::Relaxed) > 0)
    {
        return libc::EBUSY;
    }
    // SAFETY: the caller guarantees that the channel was made here, from a box, and is no longer used.
    drop(unsafe { Box::from_raw(channel.cast::<CompletionChannel>()) });
    0
}

/// Waits for an event, unless C has set the descriptor to `O_NONBLOCK`. Returns 0 or -1, with errno.
///
/// # Safety
/// `channel` must have been returned by [`ibv_create_comp_channel`]; the other pointers must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    let mut event = [0; 8];
    // SAFETY: the caller guarantees that the channel is valid; it is not null.
    let Some(channel) = (unsafe { CompletionChannel::of(channel.cast()) }) else { return -1 };
    match (&channel.reader).read(&mut event) {
        Ok(8) => {}
        // The writer lives as long as the channel and writes whole events.
        Ok(_) => return -1,
        Err(error) => {
            let _: *mut c_void = refuse(error.raw_os_error().unwrap_or(libc::EIO));
            return -1;
        }
    }
    let named = std::ptr::with_exposed_provenance_mut::<ibv_cq>(u64::from_ne_bytes(event) as usize);
    // SAFETY: C must read all events of a queue before it destroys the queue. The places are valid.
    unsafe {
        queue.write(named);
        context.write((*named).cq_context);
    }
    0
}

/// Acknowledges events. Has no effect: destroying a queue does not wait for it.
///
/// # Safety
/// `queue` must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(_queue: *mut ibv_cq, _count: c_uint) {}
