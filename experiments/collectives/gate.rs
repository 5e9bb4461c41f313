//! A gate in front of what is measured on a stream: the device stands before it until the host has appended everything. Otherwise a clock that
//! starts behind the first operations also counts how long the host takes to append the others.

use crate::error::Failure;
use ginlab::cuda::{Buffer, Device, DeviceError, Event, Function, Graph, Place, Stream};
use ginlab::gin::World;
use kernels::ipc_wait::{GateArgs, IPC_GATE};
use std::time::Duration;

/// Bytes between words that different parties write.
const APART: usize = 128;

/// Appends one operation to a stream.
pub type Append<'a> = &'a dyn Fn(&Stream) -> Result<(), DeviceError>;

/// So many operations, recorded where they are to be.
pub struct Turns {
    graph: Option<Graph>,
    pub count: u32,
}

impl Turns {
    pub fn new(stream: &Stream, recorded: bool, count: u32, append: Append) -> Result<Turns, DeviceError> {
        let all = |stream: &Stream| (0..count).try_for_each(|_| append(stream));
        Ok(Turns { graph: recorded.then(|| stream.record(all)).transpose()?, count })
    }

    /// Appends them: those that were recorded, or else what `append` does.
    pub fn run(&self, stream: &Stream, append: Append) -> Result<(), DeviceError> {
        match &self.graph {
            // SAFETY: as for what was recorded; the replay before has ended.
            Some(graph) => unsafe { stream.replay(graph) },
            None => (0..self.count).try_for_each(|_| append(stream)),
        }
    }
}

/// A gate of one stream.
pub struct Gate {
    function: Function<GateArgs>,
    /// Whom the kernel tells and whom it waits for: nobody, and the host.
    table: Buffer,
    nobody: Buffer,
    host: Buffer,
    round: u64,
    timeout: Duration,
}

impl Gate {
    pub fn new(device: &Device, timeout: Duration) -> Result<Gate, Failure> {
        let table = device.allocate(Place::Device, 16)?;
        let nobody = device.allocate(Place::Device, 2 * APART)?;
        let host = device.allocate(Place::Host, 8)?;
        table.write(0, &[[nobody.address(), host.address()]])?;
        Ok(Gate { function: device.function(&IPC_GATE, 1)?, table, nobody, host, round: 0, timeout })
    }

    /// Appends both turns behind the gate and opens it; the events around the second of them.
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

    /// What is appended behind it waits until it is opened. It opens by itself when the world ends, or after the longest wait.
    fn close(&mut self, stream: &Stream, world: &World) -> Result<(), DeviceError> {
        self.round += 1;
        let args = GateArgs {
            words: self.table.pointer(),
            count: 1,
            round: self.round,
            timeout_ns: self.timeout.as_nanos() as u64,
            abort: world.description().abort,
            stop: (self.nobody.address() + APART as u64) as *const _,
        };
        // SAFETY: the words are kept until the stream's work is done, for which every repeat waits.
        unsafe { stream.launch(&self.function, 1, 1, args) }
    }
}
