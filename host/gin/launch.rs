//! Kernels of the world: launching, waiting, and reporting failures.

use super::{GinError, Program, World, error};
use cuda_std::Kernel;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{DeviceError, Launch, set_reason};
use ginlab_proxy::{ProxyGroup, device_timeout};
use ginlab_rails::{DrainStep, drain};
use kernels::gin::{Control, FailureReport};
use kernels::ring::Status;
use std::fmt::Display;
use std::mem::offset_of;
use std::time::Duration;

/// A running grid.
#[derive(Debug)]
pub struct RunningGrid {
    launch: Launch,
    kernel: &'static str,
}

impl World {
    /// Returns the description of the job for kernels whose arguments are not a [`Program`].
    pub fn description(&self) -> kernels::gin::WorldView {
        self.description
    }

    /// Runs a kernel on this PE and waits until it ends. The call is not collective. However, if kernels of several PEs
    /// wait for each other, every PE must launch its kernel.
    ///
    /// # Safety
    /// The caller must uphold the kernel's contract for `args`.
    ///
    /// # Errors
    /// Returns an error if
    ///
    /// - the blocks of the kernel wait for each other (`#[kernel(resident)]`), and the grid does not fit on the device
    ///   together with those of the other PEs on it;
    /// - the kernel neither ends nor makes progress for longer than its own waits last;
    /// - a call of the kernel failed: [`GinError::Call`] describes the first one, with block, call, PE and reason;
    /// - a peer exited or a proxy failed.
    pub unsafe fn launch<A>(
        &mut self,
        ranks: &mut Bootstrap,
        kernel: &Kernel<Program<A>>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<(), GinError>
    where
        A: Copy + Send + Sync + 'static,
    {
        // SAFETY: the caller upholds the kernel's contract, and the kernel has ended when `wait` returns.
        let running = unsafe { self.start(kernel, grid, block, args) }?;
        self.wait(ranks, running)
    }

    /// Like [`launch`](World::launch), but does not wait; call [`wait`](World::wait) to do so.
    ///
    /// # Safety
    /// The requirements of [`launch`](World::launch) must hold until the wait has returned.
    ///
    /// # Errors
    /// Returns the device's error if it refuses the launch.
    pub unsafe fn start<A>(
        &mut self,
        kernel: &Kernel<Program<A>>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<RunningGrid, GinError>
    where
        A: Copy + Send + Sync + 'static,
    {
        self.prepare()?;
        let program = Program { world: self.description, args };
        // SAFETY: the world, and the memory to which the description points, outlive the kernel: `wait` or the drop of
        // the launch waits for its end. The caller upholds the kernel's contract for `args`.
        let launch = unsafe { self.device.launch(kernel, grid, block, program) }?;
        Ok(RunningGrid { launch, kernel: kernel.name() })
    }

    /// Waits until a kernel ends. In the meantime, checks for interrupts and for peers and proxies that have exited,
    /// and aborts the kernel's waits in these cases. This is necessary because a thread that waits for a signal does
    /// not check its ring.
    ///
    /// # Errors
    /// Returns the same errors as [`launch`](World::launch).
    pub fn wait(&mut self, ranks: &mut Bootstrap, running: RunningGrid) -> Result<(), GinError> {
        let RunningGrid { mut launch, kernel } = running;
        self.wait_until(ranks, kernel, || launch.is_done())
    }

    /// Prepares for kernels that the caller appends to its own streams with the [`description`](World::description).
    /// Earlier kernels must have ended. Clears the report of a failed call, and the abort word that ended other waits
    /// because of it.
    ///
    /// # Errors
    /// Returns [`GinError::Failed`] or [`GinError::Interrupted`] after a final failure: a peer exited, a proxy stopped,
    /// a kernel made no progress, or the run was interrupted. Returns the driver's error otherwise.
    pub fn prepare(&self) -> Result<(), GinError> {
        if ginlab_base::signals::interrupted() {
            return Err(GinError::Interrupted);
        }
        if let Some((text, timed_out)) = self.failed.get() {
            return Err(GinError::Failed { text: text.clone(), timed_out: *timed_out });
        }
        set_reason("");
        self.report.write(0, &[0u64; size_of::<FailureReport>() / 8])?;
        Ok(self.abort.write(offset_of!(Control, abort), &[0u64])?)
    }

    /// Returns the maximum time within which kernels end after an abort.
    pub(super) fn ending(&self) -> Duration {
        Launch::ENDING.min(self.host_timeout())
    }

    /// Aborts the waits of all kernels and makes this failure final. Later launches are refused with the first final
    /// failure.
    pub(super) fn give_up(&self, reason: Status, error: &impl Display, timed_out: bool) -> Result<(), GinError> {
        let (first, _) = self.failed.get_or_init(|| (error.to_string(), timed_out));
        set_reason(first);
        Ok(self.abort.write(offset_of!(Control, abort), &[reason.0])?)
    }

    /// Returns whether a call of a kernel failed. If so, also aborts the waits of other blocks and of later grids, each
    /// of which would otherwise last until its own deadline.
    pub(super) fn ends_by_report(&self) -> Result<bool, GinError> {
        let mut stop = [0u64];
        self.report.read(0, &mut stop)?;
        if stop[0] != 0 && self.failed.get().is_none() {
            self.abort.write(offset_of!(Control, abort), &[Status::ENDED.0])?;
        }
        Ok(stop[0] != 0)
    }

    /// Like [`wait`](World::wait), for work that the caller has submitted. `done` returns whether it has ended.
    ///
    /// # Errors
    /// Returns the same errors as [`launch`](World::launch).
    pub fn wait_until(
        &mut self,
        ranks: &mut Bootstrap,
        kernel: &'static str,
        done: impl FnMut() -> Result<bool, DeviceError>,
    ) -> Result<(), GinError> {
        let (watch, mut kernels) = self.watch(ranks, kernel);
        watch.wait(&mut kernels, self.ending(), done).and(self.reported(kernel))
    }

    /// Returns the first failed call of the last launch as an error.
    pub(super) fn reported(&self, kernel: &'static str) -> Result<(), GinError> {
        let mut words = [0u64; size_of::<FailureReport>() / 8];
        self.report.read(0, &mut words)?;
        if words[0] == 0 {
            return Ok(());
        }
        let failure = || self.group.as_ref().and_then(|group| group.failures().next());
        let mut proxy = failure();
        if Status(words[0]) == Status::STOPPED {
            // Kernels are notified first: the proxy thread ends only after its posted transfers have drained.
            drain(device_timeout(Duration::ZERO), || {
                proxy = failure();
                if proxy.is_some() { DrainStep::Empty } else { DrainStep::Idle }
            });
        }
        if let Some(error) = &proxy {
            self.give_up(Status::STOPPED, error, error.is_timeout())?;
        }
        let rings = self.group.as_ref().map(ProxyGroup::ring_states).unwrap_or_default();
        let card = self.cards.as_ref().map(|cards| cards.failures()).transpose()?.unwrap_or_default();
        let proxy = proxy.map(|error| self.named(error));
        Err(error::call(kernel, &words, self.pes_of(words[2]), proxy, (rings, card)))
    }

    /// Returns the PE named in a report, and the path to it. A report stores the PE's number plus 1, or 0 for none.
    fn pes_of(&self, number: u64) -> Option<(u32, String)> {
        let pe = u32::try_from(number.checked_sub(1)?).ok()?;
        Some((pe, self.path_to(pe).to_owned()))
    }
}
