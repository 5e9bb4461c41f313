//! Cases of a parameter combination, which are interleaved: ginlab's kernels, the copy engine, the predecessor's loop,
//! and equivalents compiled by nvcc.

use super::args::Store;
use super::plan::{IpcConfig, IpcOperation, IpcPlan};
use crate::error::Failure;
use ginlab::cuda::{Device, DeviceError, ForeignModule, Function, Kernel};
use kernels::ipc::IpcKernelArgs;
use kernels::ipc_bulk::{IPC_BULK_COPY, IPC_BULK_WRITE};
use kernels::ipc_kernel::*;
use kernels::ipc_parts::IPC_PARTS_WRITE;
use kernels::ipc_together::{IPC_TOGETHER_WRITE, TogetherArgs};

/// Baseline of the other cases.
pub const COPY_ENGINE: &str = "copy-engine";

/// Mechanism that moves the bytes.
pub enum CopyMechanism {
    CopyEngine,
    /// One kernel per flow.
    Each(Function<IpcKernelArgs>),
    /// One kernel for all flows of a rank.
    Together(Function<TogetherArgs>),
}

/// A method of moving the bytes.
pub struct CopyMethod {
    pub name: &'static str,
    pub width: Option<u32>,
    pub store: Option<&'static str>,
    /// Name of the baseline case, and its width if it has one.
    pub baseline: Option<(&'static str, Option<u32>)>,
    pub by: CopyMechanism,
    /// Whether the receiving device also measures the time.
    pub received: bool,
}

/// Width and store method of a bulk case.
pub const BULK: (u32, &str) = (16, "bulk");

/// Name of a bulk case that this device does not support, and the reason.
pub type MissingCase = (&'static str, String);

impl CopyMethod {
    /// Returns whether the case reads the bytes from memory instead of generating a pattern.
    pub fn has_source(&self, operation: IpcOperation) -> bool {
        matches!(self.by, CopyMechanism::CopyEngine) || operation != IpcOperation::Write
    }

    /// Returns whether the case stores the bytes in memory. A kernel that reads stores sums instead.
    pub fn has_destination(&self, operation: IpcOperation) -> bool {
        matches!(self.by, CopyMechanism::CopyEngine) || operation != IpcOperation::Read
    }
}

fn kernel(operation: IpcOperation, width: u32) -> &'static Kernel<IpcKernelArgs> {
    match (operation, width) {
        (IpcOperation::Write, 4) => &IPC_WRITE_4,
        (IpcOperation::Write, 8) => &IPC_WRITE_8,
        (IpcOperation::Write, _) => &IPC_WRITE_16,
        (IpcOperation::Copy, 4) => &IPC_COPY_4,
        (IpcOperation::Copy, 8) => &IPC_COPY_8,
        (IpcOperation::Copy, _) => &IPC_COPY_16,
        (IpcOperation::Read, 4) => &IPC_READ_4,
        (IpcOperation::Read, 8) => &IPC_READ_8,
        (IpcOperation::Read, _) => &IPC_READ_16,
    }
}

fn bulk(operation: IpcOperation) -> Option<(&'static str, &'static Kernel<IpcKernelArgs>)> {
    match operation {
        IpcOperation::Write => Some(("bulk-write", &IPC_BULK_WRITE)),
        IpcOperation::Copy => Some(("bulk-copy", &IPC_BULK_COPY)),
        // A read stores no bytes in bulk.
        IpcOperation::Read => None,
    }
}

/// Returns the cases of a parameter combination, and the case that the device does not support.
pub fn cases(
    plan: &IpcPlan,
    device: &Device,
    cuda: Option<&ForeignModule>,
    tuple: &IpcConfig,
) -> Result<(Vec<CopyMethod>, Option<MissingCase>), Failure> {
    let operation = tuple.operation;
    let engine = Some((COPY_ENGINE, None));
    let mut cases = vec![CopyMethod {
        name: COPY_ENGINE,
        width: None,
        store: None,
        baseline: None,
        by: CopyMechanism::CopyEngine,
        received: false,
    }];
    let mut missing = None;
    let with = |name, width, store, by| CopyMethod {
        name,
        width: Some(width),
        store: Some(store),
        baseline: engine,
        by,
        received: operation != IpcOperation::Read,
    };
    let ours = |name, width, store, function| with(name, width, store, CopyMechanism::Each(function));
    let plain = plan.args.store.contains(&Store::Plain);
    if plain {
        for &width in &plan.args.width {
            let function = device.function(kernel(operation, width), tuple.block)?;
            cases.push(ours(operation.name(), width, "plain", function));
        }
    }
    let writes = operation == IpcOperation::Write;
    if writes && plan.args.store.contains(&Store::Parts) {
        let function = device.function(&IPC_PARTS_WRITE, tuple.block)?;
        cases.push(ours("parts-write", 16, "parts", function));
    }
    if writes && plan.args.store.contains(&Store::Together) {
        let function = device.function(&IPC_TOGETHER_WRITE, tuple.block)?;
        cases.push(with("together-write", 16, "together", CopyMechanism::Together(function)));
    }
    if let Some((name, kernel)) = bulk(operation).filter(|_| plan.args.store.contains(&Store::Bulk)) {
        match device.function(kernel, tuple.block) {
            Ok(function) => cases.push(ours(name, BULK.0, BULK.1, function)),
            Err(DeviceError::Missing(why)) => missing = Some((name, why)),
            Err(error) => return Err(error.into()),
        }
    }
    let baseline = |name, width, baseline, function| CopyMethod {
        baseline,
        received: false,
        ..ours(name, width, "plain", function)
    };
    if writes {
        cases.push(baseline("int-loop", 4, engine, device.function(&IPC_INT_LOOP, tuple.block)?));
    }
    if let Some(cuda) = cuda {
        // SAFETY: the kernels of these names in experiments/ipc/baseline take IpcArgs. Other files do not contain
        // kernels of these names.
        let twin = |name| unsafe { cuda.function::<IpcKernelArgs>(name) };
        for &width in plan.args.width.iter().filter(|_| plain) {
            let against = Some((operation.name(), Some(width)));
            cases.push(baseline("cuda-c++", width, against, twin(kernel(operation, width).name())?));
        }
        if writes {
            cases.push(baseline("cuda-c++-int-loop", 4, Some(("int-loop", Some(4))), twin(IPC_INT_LOOP.name())?));
        }
    }
    Ok((cases, missing))
}
