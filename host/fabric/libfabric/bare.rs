//! The yardstick: the plainest possible loop of `fi_write`.

use std::time::{Duration, Instant};

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::BARE_WINDOW;
use super::errors::Doing;
use super::{AGAIN, ERROR_WAITS, LibfabricRail, LibfabricRegion};
use crate::{FabricError, Rail, RemoteRegion, Transfer, mistake};

/// From the start of a region to the start of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct BareLoop {
    /// The peer.
    pub peer: usize,
    /// Its region on this rail.
    pub remote: RemoteRegion,
    /// Bytes of each write.
    pub bytes: u64,
    /// How many writes.
    pub count: u64,
    /// When the loop gives up.
    pub deadline: Duration,
}

/// The clock is read once in so many polls.
const POLLS_PER_CLOCK: u32 = 256;

impl LibfabricRail {
    /// Writes from the start of the region to the start of the peer's region so many times, and returns the seconds
    /// from the first post to the last completion.
    ///
    /// This is what the engine is compared with in the same run: a window of 64, `fi_write`, and the completion queue read when
    /// the window is full. The window slides (the next write is posted as soon as one is complete), which is faster than
    /// draining it each time. No checks, no tokens, no immediates. Writes complete at the level that the
    /// rail was opened with (where a provider heeds it only in `fi_writemsg`, that call is made instead).
    ///
    /// The rail must be idle; immediates that arrive meanwhile are an error. The target must poll its rail. After its deadline the
    /// loop ends with an error; what is outstanding then completes in later polls, unnoticed, and this rail refuses further loops.
    ///
    /// # Safety
    /// The peer's region stays registered and may be overwritten; ours is not changed during the call and, after an error, until
    /// the rail is dropped.
    pub unsafe fn bare_writes(&mut self, region: &LibfabricRegion, run: &BareLoop) -> Result<f64, FabricError> {
        let rail = self;
        let BareLoop { peer, remote, bytes: size, count, deadline } = *run;
        let what = || format!("the bare loop of {count} fi_write of {size} B to peer {peer}");
        let refuse = |rail: &LibfabricRail, text: &str| Err(mistake(&rail.name, what(), text));
        let Some(&address) = rail.peers.get(peer) else { return refuse(rail, "there is no such peer") };
        let fits = size <= region.bytes.min(remote.bytes).min(rail.limits().max_transfer_bytes);
        if size == 0 || !fits || !region.belongs_to(&rail.core) {
            return refuse(rail, "the size is 0 or does not fit into both regions of this rail");
        }
        if rail.outstanding() > 0 || rail.bare_outstanding {
            return refuse(rail, "the rail has transfers outstanding");
        }
        // Until the loop ends well: its contexts must not be used again while the provider may hold them.
        rail.bare_outstanding = true;
        let window = BARE_WINDOW.min(rail.limits().max_outstanding);
        let mut contexts: Vec<_> = rail.core.contexts.bare.iter().take(window).collect();
        let mut entries = [sys::fi_cq_data_entry::default(); BARE_WINDOW];
        let (immediate, more) = (None, false);
        let transfer =
            Transfer { local_offset: 0, peer, remote, remote_offset: 0, bytes: size, immediate, token: 0, more };
        let queue = rail.queue;
        let (mut posted, mut completed, mut turns) = (0, 0, 0u32);

        let start = Instant::now();
        while completed < count {
            while posted < count {
                let Some(&context) = contexts.last() else { break };
                // SAFETY: the size fits both regions, the slot is one of the bare loop's that is not in use; the caller vouches
                // for the memory.
                match unsafe { rail.post_bare(context, region, &transfer, address) } {
                    0 => {
                        contexts.pop();
                        posted += 1;
                    }
                    AGAIN => break,
                    code => return Err(rail.error(Doing::Transferring, what(), code)),
                }
            }
            // SAFETY: the queue is open and the buffer has so many entries.
            let read = unsafe { ops::fi_cq_read(queue, entries.as_mut_ptr().cast(), entries.len()) };
            if read > 0 {
                for entry in &entries[..read as usize] {
                    if !rail.core.contexts.bare.holds(entry.op_context) || entry.flags & sys::FI_REMOTE_CQ_DATA != 0 {
                        return refuse(rail, "a foreign completion came in between");
                    }
                    contexts.push(entry.op_context.cast());
                }
                completed += read as u64;
            } else if read == ERROR_WAITS {
                let mut failed = Vec::new();
                rail.poll(&mut failed)?;
                return match failed.pop() {
                    Some(crate::Completion::Failed { error, .. }) => Err(*error),
                    _ => refuse(rail, "the completion queue reported an error and did not tell it"),
                };
            } else if read != 0 && read != AGAIN {
                return Err(rail.error(Doing::Transferring, "fi_cq_read in the bare loop", read));
            }
            turns = turns.wrapping_add(1);
            if completed < count && turns.is_multiple_of(POLLS_PER_CLOCK) && start.elapsed() > deadline {
                let text =
                    format!("{completed} writes complete after {} s: does the target poll?", deadline.as_secs_f64());
                return refuse(rail, &text);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        rail.bare_outstanding = false;
        Ok(seconds)
    }
}
