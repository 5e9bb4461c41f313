//! Staging: device memory that a rail cannot read is copied to pinned host memory before the write.

use ginlab_cuda::{DeviceError, OrderedCopies};
use kernels::command::Command;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Device memory of one region, and the copies from it that are in progress.
#[derive(Debug)]
pub struct Stage {
    queue: Box<dyn OrderedCopies>,
    device: u64,
    host: u64,
    /// Whether copies are needed. If clear, the copies are not read, and commands are posted without them. `None` if
    /// they are always needed.
    needed: Option<Arc<AtomicBool>>,
    /// Commands whose copies are in progress, in the order in which they were started.
    pending: VecDeque<(u64, Command)>,
}

impl Stage {
    /// Creates a stage that copies from `device` to the registered memory at `host`, at equal offsets.
    ///
    /// # Safety
    /// Both ranges must be as long as the region and must stay valid for the lifetime of the stage.
    pub unsafe fn new(queue: impl OrderedCopies + 'static, device: u64, host: u64) -> Stage {
        Stage { queue: Box::new(queue), device, host, needed: None, pending: VecDeque::new() }
    }

    /// Makes copies only while `needed` is set: modelled cards that move no bytes do not read the copies.
    #[must_use]
    pub fn only_while(self, needed: Arc<AtomicBool>) -> Stage {
        Stage { needed: Some(needed), ..self }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed.load(Ordering::Relaxed))
    }

    /// Starts the copy of a command's source bytes. The caller has checked their range.
    pub(super) fn start(&mut self, ticket: u64, command: &Command) -> Result<(), DeviceError> {
        let offset = command.source_offset;
        // SAFETY: the caller of `new` guarantees that both ranges are valid for the region, and the caller has checked
        // that the bytes are in the region.
        unsafe { self.queue.start(self.host + offset, self.device + offset, command.bytes as usize) }?;
        self.pending.push_back((ticket, *command));
        Ok(())
    }

    /// Appends the commands whose copies have finished since the last call, in the order in which they were started.
    pub(super) fn finished(&mut self, commands: &mut Vec<(u64, Command)>) -> Result<(), DeviceError> {
        if !self.pending.is_empty() {
            let count = self.queue.finished()?;
            commands.extend(self.pending.drain(..count.min(self.pending.len())));
        }
        Ok(())
    }

    /// Returns the number of commands whose copies are in progress.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}
