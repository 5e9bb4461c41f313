//! Verification of every byte.

use super::measure::Cases;
use super::plan::GpuFlow;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Function;
use kernels::ipc::{IpcKernelArgs, POISON, sum};

impl Cases<'_> {
    /// Poisons the destination, runs the case as it is timed, and checks the bytes at the rank that holds them.
    pub fn check(&mut self, case: usize, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let me = self.rank.me;
        let operation = self.tuple.operation;
        let flows: Vec<(usize, GpuFlow)> = self.scene.flows.iter().copied().enumerate().collect();
        let held: Vec<(usize, GpuFlow)> =
            flows.iter().copied().filter(|(_, flow)| self.holder(*flow).0 == me).collect();
        let in_memory = self.setup.cases[case].has_destination(operation);
        if self.setup.cases[case].has_source(operation) && flows.iter().any(|(_, flow)| self.holder(*flow).1 == me) {
            self.help(&self.setup.fill, self.rank.source(me), self.seed(case, me), 0, ranks)?;
        }
        if in_memory {
            for (_, flow) in &held {
                let (_, owner) = self.holder(*flow);
                self.help(&self.setup.fill, self.rank.slot(me, owner), self.seed(case, owner), POISON, ranks)?;
            }
        } else if self.plan.args.fault.is_some() {
            self.rank.spoil(None, self.tuple.bytes / 2)?;
        }
        ranks.barrier("poisoned")?;
        self.batch(case, 1, false, ranks)?;
        ranks.barrier("moved")?;
        for (number, flow) in held {
            let (_, owner) = self.holder(flow);
            let seed = self.seed(case, owner);
            let wrong = if in_memory {
                if self.plan.args.fault.is_some() {
                    self.rank.spoil(Some(owner), self.tuple.bytes / 2)?;
                }
                self.rank.reset_counter(None)?;
                self.help(&self.setup.check, self.rank.slot(me, owner), seed, 0, ranks)?;
                self.rank.counted()?
            } else {
                // The rank that reads holds the sums, so that the flow is in `mine`.
                let index = self.setup.mine.iter().position(|(mine, _)| *mine == number).unwrap_or_default();
                let mut sums = vec![0u32; self.threads()];
                if let Some(buffer) = &self.setup.sums {
                    buffer.read(index * self.threads() * 4, &mut sums)?;
                }
                let found = sums.iter().fold(0u32, |sum, one| sum.wrapping_add(*one));
                // A wrong sum does not show which bytes are wrong, so all of them are counted.
                if found == sum(seed, self.tuple.bytes) { 0 } else { self.tuple.bytes }
            };
            self.outcome.wrong.push((case, number, wrong));
        }
        Ok(())
    }

    /// Fills or checks memory of this rank.
    fn help(
        &self,
        function: &Function<IpcKernelArgs>,
        address: u64,
        seed: u32,
        xor: u32,
        ranks: &mut Bootstrap,
    ) -> Result<(), Failure> {
        let args = IpcKernelArgs {
            destination: address as *mut u8,
            source: std::ptr::null(),
            bytes: self.tuple.bytes,
            seed,
            xor,
            sums: std::ptr::null_mut(),
            counter: self.rank.counter(None),
            flag: std::ptr::null(),
            taken: std::ptr::null(),
        };
        let (grid, block) = self.helpers();
        // SAFETY: the memory has the parameter combination's size, and barriers keep other ranks from accessing it at
        // the same time.
        unsafe { self.rank.streams[0].launch(function, grid, block, args) }?;
        let event = self.rank.streams[0].event()?;
        self.wait(&[event], "filling or checking", ranks)
    }
}
