//! The reference for comparisons: a minimal loop of `fi_write`.

use std::time::{Duration, Instant};

use ginlab_base::progress;
use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::BARE_WINDOW;
use super::errors::FailedOperation;
use super::{AGAIN, ERROR_WAITS, LibfabricRail, LibfabricRegion};
use crate::{FabricError, Rail, RemoteRegion, Transfer, mistake};

/// Parameters of a loop that writes from the start of a region to the start of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct BareLoop {
    /// Index of the peer.
    pub peer: usize,
    /// The peer's region on this rail.
    pub remote: RemoteRegion,
    /// Bytes per write.
    pub bytes: u64,
    /// Number of writes.
    pub count: u64,
    /// Maximum time without a completion, after which the loop fails.
    pub deadline: Duration,
}

/// Number of polls between two reads of the clock.
const POLLS_PER_CLOCK: u32 = 256;

impl LibfabricRail {
    /// Writes `count` times from the start of the region to the start of the peer's region. Returns the seconds from
    /// the first post to the last completion.
    ///
    /// The engine is compared with this loop in the same run. The loop has a window of 64 calls of `fi_write`, and
    /// reads the completion queue when the window is full. The window slides (the next write is posted as soon as one
    /// is complete), which is faster than draining it each time. The loop omits checks, tokens and immediates. Writes
    /// complete at the level that the rail was opened with. If the provider honours the level only in `fi_writemsg`,
    /// that call is used instead.
    ///
    /// The rail must be idle; an immediate that arrives during the loop is an error. The target must poll its rail.
    /// After its deadline the loop returns an error. Outstanding writes then complete in later polls without being
    /// reported, and this rail refuses further loops.
    ///
    /// # Safety
    /// The peer's region must stay registered and may be overwritten. Our region must not be changed during the call
    /// and, after an error, until the rail is dropped.
    pub unsafe fn bare_writes(&mut self, region: &LibfabricRegion, run: &BareLoop) -> Result<f64, FabricError> {
        let rail = self;
        let BareLoop { peer, remote, bytes: size, count, deadline } = *run;
        let what = || format!("the bare loop of {count} fi_write of {size} B to peer {peer}");
        let refuse = |rail: &LibfabricRail, text: &str| Err(mistake(&rail.name, what(), text));
        let Some(address) = rail.peer(peer) else { return refuse(rail, "no such peer") };
        let fits = size <= region.bytes.min(remote.bytes).min(rail.limits().max_transfer_bytes);
        if size == 0 || !fits || !region.belongs_to(&rail.core) {
            return refuse(rail, "the size is 0 or does not fit into both regions of this rail");
        }
        if rail.outstanding() > 0 || rail.bare_outstanding {
            return refuse(rail, "the rail has transfers outstanding");
        }
        // The flag is set until the loop succeeds, because the contexts must not be reused while the provider may hold
        // them.
        rail.bare_outstanding = true;
        let window = BARE_WINDOW.min(rail.limits().max_outstanding);
        let mut contexts: Vec<_> = rail.core.contexts.bare.iter().take(window).collect();
        let mut entries = [sys::fi_cq_data_entry::default(); BARE_WINDOW];
        let transfer = Transfer::new(0, (peer, remote, 0), size, 0);
        let queue = rail.queue;
        let (mut posted, mut completed, mut turns) = (0, 0, 0u32);

        let start = Instant::now();
        // Number of completions at the last check of the clock that observed progress, and the time of that check.
        let mut moved = (0, start);
        while completed < count {
            while posted < count {
                let Some(&context) = contexts.last() else { break };
                // SAFETY: the size fits both regions, and the slot belongs to the bare loop and is not in use. The
                // caller guarantees that the memory is valid.
                match unsafe { rail.post_bare(context, region, &transfer, address) } {
                    0 => {
                        contexts.pop();
                        posted += 1;
                    }
                    AGAIN => break,
                    code => return Err(rail.error(FailedOperation::Transferring, what(), code)),
                }
            }
            // SAFETY: the queue is open and the buffer has `entries.len()` entries.
            let read = unsafe { ops::fi_cq_read(queue, entries.as_mut_ptr().cast(), entries.len()) };
            if read > 0 {
                for entry in &entries[..read as usize] {
                    if !rail.core.contexts.bare.holds(entry.op_context) || entry.flags & sys::FI_REMOTE_CQ_DATA != 0 {
                        return refuse(rail, "an unrelated completion arrived in between");
                    }
                    contexts.push(entry.op_context.cast());
                }
                completed += read as u64;
            } else if read == ERROR_WAITS {
                let mut failed = Vec::new();
                rail.poll(&mut failed)?;
                return match failed.pop() {
                    Some(crate::Completion::Failed { error, .. }) => Err(*error),
                    _ => refuse(rail, "the completion queue reported an error without details"),
                };
            } else if read != 0 && read != AGAIN {
                return Err(rail.error(FailedOperation::Transferring, "fi_cq_read in the bare loop", read));
            }
            turns = turns.wrapping_add(1);
            if !turns.is_multiple_of(POLLS_PER_CLOCK) || completed == count {
                continue;
            }
            if moved.0 != completed {
                moved = (completed, Instant::now());
                progress::record();
            } else if moved.1.elapsed() > deadline {
                let text = format!(
                    "{completed} writes complete, but none for {} s: does the target poll?",
                    deadline.as_secs_f64()
                );
                return refuse(rail, &text);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        rail.bare_outstanding = false;
        Ok(seconds)
    }
}
