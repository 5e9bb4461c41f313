//! Kernels of the world: launched, waited for, and what they report.

use super::life::Life;
use super::{GinError, Program, World, error};
use cuda_std::Kernel;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{DeviceError, Launch, wait_for};
use ginlab_proxy::{ProxyGroup, device_timeout};
use ginlab_rails::{Turn, drain};
use kernels::gin::Report;
use kernels::ring::Status;
use std::time::Duration;

/// A grid that runs.
#[derive(Debug)]
pub struct Running {
    launch: Launch,
    kernel: &'static str,
}

impl World {
    /// What kernels know of the job, for arguments of another shape than [`Program`].
    pub fn description(&self) -> kernels::gin::World {
        self.description
    }

    /// Runs a kernel on this PE and waits for its end. Not collective by itself; kernels that wait for each other are launched by all.
    ///
    /// # Safety
    /// The kernel's own contract for `args`.
    ///
    /// # Errors
    /// A grid that the device cannot hold as a whole, beside those of the other PEs on it, of a kernel whose blocks wait (`#[kernel(resident)]`); no end and
    /// no sign of life for longer than the kernel's own waits last; [`GinError::Call`] with the first call that failed: block, call, PE
    /// and reason; what ended a peer or a proxy.
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
        // SAFETY: the caller's contract.
        let running = unsafe { self.start(kernel, grid, block, args) }?;
        self.wait(ranks, running)
    }

    /// As [`launch`](World::launch), without waiting: [`wait`](World::wait) does.
    ///
    /// # Safety
    /// As [`launch`](World::launch), until the wait has ended.
    ///
    /// # Errors
    /// When the device refuses the launch.
    pub unsafe fn start<A>(
        &mut self,
        kernel: &Kernel<Program<A>>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<Running, GinError>
    where
        A: Copy + Send + Sync + 'static,
    {
        self.prepare()?;
        let program = Program { world: self.description, args };
        // SAFETY: what the world points to lives as long as it, and `wait` or the drop of the launch comes first; the rest is the caller's.
        let launch = unsafe { self.device.launch(kernel, grid, block, program) }?;
        Ok(Running { launch, kernel: kernel.name() })
    }

    /// Waits for a kernel's end. Looks for peers and proxies that have gone and for Ctrl-C meanwhile, which end the kernel's waits: whoever
    /// waits for a signal does not look at its ring.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn wait(&mut self, ranks: &mut Bootstrap, running: Running) -> Result<(), GinError> {
        let Running { mut launch, kernel } = running;
        self.wait_until(ranks, kernel, || launch.is_done())
    }

    /// Makes ready for kernels that the caller appends to streams of its own, with the [`description`](World::description).
    ///
    /// # Errors
    /// The driver's.
    pub fn prepare(&self) -> Result<(), GinError> {
        Ok(self.report.write(0, &[0u64; size_of::<Report>() / 8])?)
    }

    /// As [`wait`](World::wait), for such work: `done` says whether it has ended.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn wait_until(
        &mut self,
        ranks: &mut Bootstrap,
        kernel: &'static str,
        done: impl FnMut() -> Result<bool, DeviceError>,
    ) -> Result<(), GinError> {
        let (mut life, mut told) = (Life::new(), false);
        let watch = || {
            self.look_around(ranks)?;
            // Other blocks, and grids behind this one, would each wait to their own deadline.
            if !told && self.has_reported()? {
                told = true;
                self.abort.write(0, &[Status::ENDED.0])?;
            }
            self.check_life(&mut life, kernel)
        };
        let ended = wait_for(Launch::ENDING.min(self.host_limit()), done, watch);
        ended.and(self.reported(kernel))
    }

    /// Whether a call of a kernel has failed.
    fn has_reported(&self) -> Result<bool, GinError> {
        let mut stop = [0u64];
        self.report.read(0, &mut stop)?;
        Ok(stop[0] != 0)
    }

    /// The first failure of the last launch.
    pub(super) fn reported(&self, kernel: &'static str) -> Result<(), GinError> {
        let mut words = [0u64; size_of::<Report>() / 8];
        self.report.read(0, &mut words)?;
        if words[0] == 0 {
            return Ok(());
        }
        let failure = || self.group.as_ref().and_then(|group| group.failures().next());
        let mut proxy = failure();
        if Status(words[0]) == Status::STOPPED {
            // The kernels are told first; the thread itself ends when what it has posted has drained.
            drain(device_timeout(Duration::ZERO), || {
                proxy = failure();
                if proxy.is_some() { Turn::Empty } else { Turn::Idle }
            });
        }
        let rings = self.group.as_ref().map(ProxyGroup::ring_states).unwrap_or_default();
        let card = self.cards.as_ref().map(|cards| cards.failures()).transpose()?.unwrap_or_default();
        Err(error::call(kernel, &words, self.pes_of(words[2]), proxy, (rings, card)))
    }

    /// The PE of a report, and how it is reached.
    fn pes_of(&self, number: u64) -> Option<(u32, String)> {
        let pe = u32::try_from(number.checked_sub(1)?).ok()?;
        Some((pe, self.path_to(pe).to_owned()))
    }
}
