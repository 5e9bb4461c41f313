//! NCCL's side.

use super::args::Tuple;
use super::shape::{Element, Operation, Shape};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Launch, Stream, wait_for};
use ginlab::nccl::{Call, Communicator, NcclError, Type};
use ginlab::signals;
use std::time::{Duration, Instant};

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
    Call { from, to, count: (shape.message() / tuple.element.bytes()) as usize, of }
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

    /// Waits for an event, within the limit: NCCL's own waits have none.
    pub fn wait(&mut self, event: &Event, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let deadline = Instant::now() + self.limit;
        let mut look = |communicator: &Communicator| {
            if signals::interrupted() {
                return Err(Failure::Interrupted);
            }
            if Instant::now() > deadline {
                let text = format!("nccl-{} is not done after {} s", self.operation.name(), self.limit.as_secs());
                return Err(Failure::Timeout(text));
            }
            communicator.check()?;
            Ok(ranks.check_peers()?)
        };
        let watch = || {
            look(self.communicator).inspect_err(|_| {
                // Its kernels wait for ranks that will not come: they end so. The first reason is the one to be told.
                let _ = self.communicator.abort();
            })
        };
        wait_for(Launch::ENDING, || event.is_complete(), watch)
    }
}
