//! Time measured by the receiver between consecutive flags, each of which follows its data.

use super::measure::Cases;
use super::plan::GpuFlow;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{MemoryLocation, Stream};
use ginlab::measure::stats::Summary;
use kernels::ipc_wait::{IPC_RECEIVE, ReceiveArgs};
use std::time::Duration;

/// Maximum number of launches with signals per pass.
const RECEIVED: u32 = 16;

impl Cases<'_> {
    /// Measures the time between consecutive flags on the receiver's clock. Each flag follows its data.
    pub fn received(&mut self, case: usize, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let count = self.setup.iterations.clamp(4, RECEIVED);
        let me = self.rank.me;
        let incoming: Vec<(usize, GpuFlow)> =
            self.scene.flows.iter().copied().enumerate().filter(|(_, flow)| flow.to == me).collect();
        let times = self.rank.device.allocate(MemoryLocation::Device, incoming.len() * count as usize * 8)?;
        let receive = self.rank.device.function(&IPC_RECEIVE, 1)?;
        for (index, (_, flow)) in incoming.iter().enumerate() {
            self.rank.lower_flag(*flow)?;
            let args = ReceiveArgs {
                flag: self.rank.flag(*flow),
                count,
                times: (times.address() + (index * count as usize * 8) as u64) as *mut u64,
                timeout_ns: self.plan.timeout.as_nanos() as u64,
                abort: self.rank.abort_word(),
                stop: self.rank.stop_word(),
            };
            // SAFETY: flag, times and words are kept until the stream's work is done, for which this function waits. On
            // an error it aborts the kernel's wait, and freeing the buffer waits for the device.
            unsafe { self.rank.receivers[index].launch(&receive, 1, 1, args) }?;
        }
        for (_, flow) in &self.setup.mine {
            self.rank.reset_counter(Some(flow.to))?;
        }
        if let Err(failure) = self.signal_and_see(case, count, incoming.len(), ranks) {
            self.rank.abort();
            // The receivers' waits have been aborted; wait until they no longer use `times`.
            if let Ok(events) = self.rank.receivers.iter().map(Stream::event).collect::<Result<Vec<_>, _>>() {
                while events.iter().any(|event| matches!(event.is_complete(), Ok(false))) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            return Err(failure);
        }
        for (index, (number, _)) in incoming.iter().enumerate() {
            let mut seen = vec![0u64; count as usize];
            times.read(index * count as usize * 8, &mut seen)?;
            let between: Vec<f64> =
                seen.windows(2).map(|pair| (pair[1].saturating_sub(pair[0])) as f64 / 1000.0).collect();
            self.outcome.received.extend(Summary::of(&between).map(|summary| (case, *number, summary.p50)));
        }
        Ok(())
    }

    fn signal_and_see(&self, case: usize, count: u32, incoming: usize, ranks: &mut Bootstrap) -> Result<(), Failure> {
        ranks.barrier("receivers are running")?;
        self.batch(case, count, true, ranks)?;
        let events = self.rank.receivers[..incoming].iter().map(Stream::event).collect::<Result<Vec<_>, _>>()?;
        self.wait(&events, "the receiver", ranks)?;
        self.check_stop("the receiver")
    }
}
