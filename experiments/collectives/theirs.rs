//! NCCL's side.

use super::args::{Launch, Tuple};
use super::shape::{Element, Operation, Shape};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Graph, Stream};
use ginlab::nccl::{Call, Communicator, NcclError, Type};
use ginlab::signals;
use std::time::{Duration, Instant};

/// How often a wait asks NCCL and the ranks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl From<NcclError> for Failure {
    fn from(error: NcclError) -> Failure {
        match error {
            NcclError::Device(error) => error.into(),
            NcclError::Ranks(error) => error.into(),
            NcclError::Late { .. } => Failure::Timeout(error.to_string()),
            NcclError::Missing(text) => Failure::Usage(text),
            NcclError::Said(_) => Failure::Run(error.to_string()),
        }
    }
}

/// An operation of NCCL's, ready to be appended to streams.
pub struct Theirs<'a> {
    pub communicator: &'a mut Communicator,
    pub operation: Operation,
    pub call: Call,
    pub root: usize,
    pub limit: Duration,
}

/// The operation of a tuple between these addresses.
pub fn call(tuple: &Tuple, shape: &Shape, from: u64, to: u64) -> Call {
    let of = match tuple.element {
        Element::F32 => Type::F32,
        Element::Bf16 => Type::Bf16,
        Element::F16 => Type::F16,
    };
    let chunks = matches!(shape.operation, Operation::AllToAll | Operation::AllGather | Operation::ReduceScatter);
    let count = if chunks { shape.chunk } else { shape.bytes } / tuple.element.bytes();
    Call { from, to, count: count as usize, of }
}

impl Theirs<'_> {
    pub fn append(&self, stream: &Stream) -> Result<(), DeviceError> {
        let Theirs { communicator, operation, call, root, .. } = self;
        // SAFETY: both memories are of the world's heap, as long as the shape says, and stay until the stream is waited for; all ranks
        // go through the same tuples.
        let appended = unsafe {
            match operation {
                Operation::AllToAll => communicator.all_to_all(call, stream),
                Operation::AllGather => communicator.all_gather(call, stream),
                Operation::ReduceScatter => communicator.reduce(call, true, stream),
                Operation::AllReduce => communicator.reduce(call, false, stream),
                Operation::Broadcast => communicator.broadcast(call, *root, stream),
                Operation::SendRecv => communicator.send_receive(call, stream),
            }
        };
        appended.map_err(|error| DeviceError::Driver { call: operation.name().into(), text: error.to_string() })
    }

    /// So many operations, recorded where they are to be.
    pub fn record(&self, stream: &Stream, launch: Launch, count: u32) -> Result<Option<Graph>, DeviceError> {
        match launch {
            Launch::Stream => Ok(None),
            // NCCL has no loop of its own: its graph is what a persistent kernel is held against.
            Launch::Graph | Launch::Persistent => {
                stream.record(|stream| (0..count).try_for_each(|_| self.append(stream))).map(Some)
            }
        }
    }

    /// Appends so many operations, by a graph where there is one.
    pub fn run(&self, stream: &Stream, graph: Option<&Graph>, count: u32) -> Result<(), DeviceError> {
        match graph {
            // SAFETY: as for `append`; one replay at a time.
            Some(graph) => unsafe { stream.replay(graph) },
            None => (0..count).try_for_each(|_| self.append(stream)),
        }
    }

    /// Waits for an event, within the limit: NCCL's own waits have none.
    pub fn wait(&mut self, event: &Event, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let deadline = Instant::now() + self.limit;
        let mut look = Instant::now() + LOOK_EVERY;
        let mut pause = Duration::from_micros(10);
        let failure = loop {
            if event.is_complete()? {
                return Ok(());
            }
            let now = Instant::now();
            if signals::interrupted() {
                break Failure::Interrupted;
            }
            if now > deadline {
                let text = format!("nccl-{} is not done after {} s", self.operation.name(), self.limit.as_secs());
                break Failure::Timeout(text);
            }
            if now > look {
                look = now + LOOK_EVERY;
                if let Err(error) = self.communicator.check() {
                    break error.into();
                }
                if let Err(error) = ranks.check_peers() {
                    break error.into();
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        };
        // Its kernels wait for ranks that will not come: they end so. The first reason is the one to be told.
        let _ = self.communicator.abort();
        Err(failure)
    }
}
