//! NCCL's implementation.

use super::args::CollectiveConfig;
use super::ours::Ours;
use super::shape::{CollectiveOperation, Element, ResultPlacement, Shape};
use crate::error::Failure;
use crate::nccl_baseline::{Communicator, NcclError, NcclType, Operands, Window};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Event, Launch, Stream};
use ginlab::gin::Sym;
use ginlab::gin::watch::{HostWait, Work};
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

/// Memory that is registered with NCCL, with a copy of each operand in the heap.
pub struct NcclWindows {
    window: Window,
    /// Offsets of inputs and outputs in the heap.
    from: u64,
    to: u64,
    /// Length of the outputs, which precede the inputs.
    outputs: u64,
}

impl NcclWindows {
    /// Registers memory for the parameter combinations. Collective. The inner error is the reason if there is none.
    pub fn open(
        nccl: &Communicator,
        ours: &Ours,
        tuples: &[CollectiveConfig],
        limit: Duration,
        ranks: &mut Bootstrap,
    ) -> Result<Result<NcclWindows, String>, Failure> {
        let shapes: Vec<Shape> = tuples.iter().map(|tuple| tuple.shape(ranks.size() as u64)).collect();
        let most = |bytes: fn(&Shape) -> u64| shapes.iter().map(bytes).max().unwrap_or(0).max(16).next_multiple_of(256);
        let (inputs, outputs) = (most(Shape::input), most(|shape| shape.bytes.max(shape.output())));
        let memory = shapes.first().and_then(|shape| ours.memory(ResultPlacement::OutOfPlace, shape));
        let Some((from, to)) = memory else { return Ok(Err("no operation uses registered memory".into())) };
        match nccl.window((inputs + outputs) as usize, ranks, limit) {
            Err(NcclError::Missing(why)) => Ok(Err(why)),
            window => Ok(Ok(NcclWindows { window: window?, from: from.offset(), to: to.offset(), outputs })),
        }
    }

    /// Returns the address of an operand's copy.
    pub fn address(&self, operand: Sym<u8>) -> u64 {
        let offset = operand.offset();
        let within = if (self.to..self.to + self.outputs).contains(&offset) {
            offset - self.to
        } else {
            self.outputs + offset - self.from
        };
        self.window.address() + within
    }

    /// Deregisters and frees the memory. All ranks must call this, before the communicator is closed.
    pub fn close(self, nccl: &Communicator, limit: Duration) -> Result<(), NcclError> {
        nccl.close_window(self.window, limit)
    }
}

/// An NCCL operation that can be appended to streams.
pub struct Theirs<'a> {
    pub communicator: &'a mut Communicator,
    pub operation: CollectiveOperation,
    pub call: Operands,
    pub root: usize,
    pub limit: Duration,
}

/// Returns the NCCL arguments for the operation of a parameter combination between these addresses.
pub fn call(tuple: &CollectiveConfig, shape: &Shape, from: u64, to: u64) -> Operands {
    let of = match tuple.element {
        Element::F32 => NcclType::F32,
        Element::Bf16 => NcclType::Bf16,
        Element::F16 => NcclType::F16,
    };
    Operands { from, to, count: (shape.message() / tuple.element.bytes()) as usize, of }
}

impl Theirs<'_> {
    pub fn append(&self, stream: &Stream) -> Result<(), DeviceError> {
        let Theirs { communicator, operation, call, root, .. } = self;
        // SAFETY: both buffers are in the world's heap with the sizes of the shape, and stay valid until the wait for
        // the stream has ended. All ranks run the same parameter combinations.
        let appended = unsafe {
            match operation {
                CollectiveOperation::AllToAll => communicator.all_to_all(call, stream),
                CollectiveOperation::AllGather => communicator.all_gather(call, stream),
                CollectiveOperation::ReduceScatter => communicator.reduce(call, true, stream),
                CollectiveOperation::AllReduce => communicator.reduce(call, false, stream),
                CollectiveOperation::Broadcast => communicator.broadcast(call, *root, stream),
                CollectiveOperation::SendRecv => communicator.send_receive(call, stream),
            }
        };
        appended.map_err(|error| DeviceError::Driver { call: operation.name().into(), text: error.to_string() })
    }

    /// Waits for an event, with a limit, because NCCL's own waits are unbounded.
    pub fn wait(&mut self, event: &Event, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let watch = HostWait::new(ranks, Duration::ZERO).with_limit(self.limit);
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
