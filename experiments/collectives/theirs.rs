//! NCCL's implementation.

use super::args::Tuple;
use super::shape::{Element, Operation, Shape};
use crate::error::Failure;
use crate::nccl_baseline::{Call, Communicator, NcclError, Type};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Launch, Stream};
use ginlab::gin::watch::{Watch, Work};
use std::time::Duration;

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

/// An NCCL operation that can be appended to streams.
pub struct Theirs<'a> {
    pub communicator: &'a mut Communicator,
    pub operation: Operation,
    pub call: Call,
    pub root: usize,
    pub limit: Duration,
}

/// Returns the NCCL arguments for the operation of a parameter combination between these addresses.
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
        // SAFETY: both buffers are in the world's heap with the sizes of the shape, and stay valid until the wait for
        // the stream has ended. All ranks run the same parameter combinations.
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

    /// Waits for an event, with a limit, because NCCL's own waits are unbounded.
    pub fn wait(&mut self, event: &Event, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let watch = Watch::new(ranks, Duration::ZERO).with_limit(self.limit);
        watch.wait(self, Launch::ENDING, || event.is_complete())
    }
}

impl Work for Theirs<'_> {
    type Error = Failure;

    fn pulse(&mut self, _: bool) -> Result<Option<u64>, Failure> {
        self.communicator.check()?;
        Ok(None)
    }

    fn late(&mut self, limit: Duration) -> Failure {
        Failure::Timeout(format!("nccl-{} has not completed after {} s", self.operation.name(), limit.as_secs()))
    }

    fn abort(&mut self, _: &Failure) {
        // Ends NCCL's kernels, which would wait indefinitely for missing ranks. The first failure is reported, instead
        // of that of the abort.
        let _ = self.communicator.abort();
    }
}
