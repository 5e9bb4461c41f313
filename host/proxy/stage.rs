//! Staging: device memory that a rail cannot read is copied into pinned host memory before the write.

use ginlab_cuda::{Copies, DeviceError};
use kernels::command::Command;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device memory behind one region, and the copies that are under way from it.
#[derive(Debug)]
pub struct Stage {
    queue: Box<dyn Copies>,
    device: u64,
    host: u64,
    /// Off while nobody reads the copies: then commands are posted as they are.
    needed: Option<Arc<AtomicBool>>,
    /// Commands whose copies run, in the order they were started.
    pending: VecDeque<(u64, Command)>,
}

impl Stage {
    /// Copies from `device` to the registered memory at `host`, offset for offset.
    ///
    /// # Safety
    /// Both stay valid as long as this, and are as long as the region.
    pub unsafe fn new(queue: impl Copies + 'static, device: u64, host: u64) -> Stage {
        Stage { queue: Box::new(queue), device, host, needed: None, pending: VecDeque::new() }
    }

    /// Copies only while this is set: modelled cards that move no bytes read none.
    #[must_use]
    pub fn only_while(self, needed: Arc<AtomicBool>) -> Stage {
        Stage { needed: Some(needed), ..self }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed.load(Ordering::Relaxed))
    }

    /// Starts the copy of a command's source bytes. The caller has checked the range.
    pub(super) fn start(&mut self, ticket: u64, command: &Command) -> Result<(), DeviceError> {
        let offset = command.source_offset;
        // SAFETY: contract of `new`, and the range lies in the region.
        unsafe { self.queue.start(self.host + offset, self.device + offset, command.bytes as usize) }?;
        self.pending.push_back((ticket, *command));
        Ok(())
    }

    /// Appends the commands whose copies have finished since the last call, in the order they were started.
    pub(super) fn finished(&mut self, commands: &mut Vec<(u64, Command)>) -> Result<(), DeviceError> {
        if !self.pending.is_empty() {
            let count = self.queue.finished()?;
            commands.extend(self.pending.drain(..count.min(self.pending.len())));
        }
        Ok(())
    }

    /// Commands whose copies run.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}
