//! Gate for measurements on a stream: the device waits at the gate until the host has appended all operations.
//! Otherwise the time between events would include the time for appending operations.

use crate::error::Failure;
use ginlab::cuda::{Buffer, Device, DeviceError, Event, Function, Graph, MemoryLocation, Stream};
use ginlab::gin::World;
use kernels::ipc_wait::{GateArgs, IPC_GATE};
use std::time::Duration;

/// Distance in bytes between words that different parties write.
const APART: usize = 128;

/// Function that appends one operation to a stream.
pub type Append<'a> = &'a dyn Fn(&Stream) -> Result<(), DeviceError>;

/// Operations, recorded as a graph if requested.
pub struct Turns {
    graph: Option<Graph>,
    pub count: u32,
}

impl Turns {
    pub fn new(stream: &Stream, recorded: bool, count: u32, append: Append) -> Result<Turns, DeviceError> {
        let all = |stream: &Stream| (0..count).try_for_each(|_| append(stream));
        Ok(Turns { graph: recorded.then(|| stream.record(all)).transpose()?, count })
    }

    /// Appends the operations: the recorded graph, or `append` for each of them.
    pub fn run(&self, stream: &Stream, append: Append) -> Result<(), DeviceError> {
        match &self.graph {
            // SAFETY: the requirements of the recorded operations still hold, and the previous replay has ended.
            Some(graph) => unsafe { stream.replay(graph) },
            None => (0..self.count).try_for_each(|_| append(stream)),
        }
    }
}

/// A gate of one stream.
pub struct Gate {
    function: Function<GateArgs>,
    /// Table of two addresses: the word that the kernel signals (`nobody`, which is never read), and the word for which
    /// it waits (`host`).
    table: Buffer,
    nobody: Buffer,
    host: Buffer,
    round: u64,
    timeout: Duration,
}

impl Gate {
    pub fn new(device: &Device, timeout: Duration) -> Result<Gate, Failure> {
        let table = device.allocate(MemoryLocation::Device, 16)?;
        let nobody = device.allocate(MemoryLocation::Device, 2 * APART)?;
        let host = device.allocate(MemoryLocation::Host, 8)?;
        table.write(0, &[[nobody.address(), host.address()]])?;
        Ok(Gate { function: device.function(&IPC_GATE, 1)?, table, nobody, host, round: 0, timeout })
    }

    /// Appends warm-up and timed operations after the gate, then opens it. Returns the events before and after the
    /// timed operations.
    pub fn around(
        &mut self,
        stream: &Stream,
        world: &World,
        [warm, timed]: &[Turns; 2],
        append: Append,
    ) -> Result<[Event; 2], DeviceError> {
        self.close(stream, world)?;
        warm.run(stream, append)?;
        let begin = stream.event()?;
        timed.run(stream, append)?;
        let end = stream.event()?;
        self.host.write(0, &[self.round])?;
        Ok([begin, end])
    }

    /// Closes the gate: operations appended after this call wait until it is opened. The gate also opens when the world
    /// aborts, or after `timeout`.
    fn close(&mut self, stream: &Stream, world: &World) -> Result<(), DeviceError> {
        self.round += 1;
        let args = GateArgs {
            words: self.table.pointer(),
            count: 1,
            round: self.round,
            timeout_ns: self.timeout.as_nanos() as u64,
            // The abort flag is the first word of `Control`.
            abort: world.description().abort.cast(),
            stop: (self.nobody.address() + APART as u64) as *const _,
        };
        // SAFETY: the words are kept until the stream's work is done, for which every repeat waits.
        unsafe { stream.launch(&self.function, 1, 1, args) }
    }
}
