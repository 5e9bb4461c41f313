//! NCCL as a reference for measurements: loaded at run time, with a bound on every wait.
//!
//! NCCL's calls on a stream return immediately, and the work that they enqueue may wait on the device without a bound.
//! A thread that waits for the stream must call [`Communicator::check`] periodically, and [`Communicator::abort`] if it
//! takes too long. Calls that may block, such as creating and destroying a communicator, run on separate threads, which
//! are abandoned if the call does not return in time.

mod library;
mod window;

use ginlab::bootstrap::{Bootstrap, BootstrapError, process_env};
use ginlab::cuda::{Device, DeviceError, Stream};
use library::{Comm, Functions, UniqueId};
use std::ffi::{c_int, c_void};
use std::sync::mpsc::channel;
use std::time::Duration;

pub use window::Window;

/// First version of NCCL with its own all-to-all.
const ALL_TO_ALL_SINCE: i32 = 22800;
/// Maximum wait for NCCL to destroy or abort a communicator.
const END: Duration = Duration::from_secs(10);
/// `ncclSum`.
const SUM: c_int = 0;
/// `ncclInProgress`, which is not an error.
const IN_PROGRESS: c_int = 7;

/// Errors of NCCL.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// NCCL is not installed or cannot be used on this machine.
    #[error("{0}")]
    Missing(String),
    /// An NCCL call failed; contains NCCL's message.
    #[error("NCCL: {0}")]
    Said(String),
    /// An NCCL call did not return in time.
    #[error("NCCL: {what} did not return within {seconds} s")]
    Late {
        /// The call.
        what: &'static str,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// A device operation failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// Communication between the ranks failed.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
}

/// Number types, with the values of `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclType {
    /// `ncclFloat16`.
    F16 = 6,
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

impl NcclType {
    /// Returns the size of a number in bytes.
    pub fn bytes(self) -> usize {
        if self == NcclType::F32 { 4 } else { 2 }
    }
}

/// Operands of an operation, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Address of the source.
    pub from: u64,
    /// Address of the destination.
    pub to: u64,
    /// Number of elements, per chunk for all-to-all, all-gather and reduce-scatter, and in total otherwise.
    pub count: usize,
    /// Type of the elements.
    pub of: NcclType,
}

/// This rank's handle of a communicator of all ranks.
#[derive(Debug)]
pub struct Communicator {
    functions: &'static Functions,
    comm: Comm,
    version: i32,
    rank: usize,
    size: usize,
    device: Device,
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NCCL")
    }
}

/// A value that is moved to another thread.
struct Sent<T>(T);
// SAFETY: a NCCL communicator may be used from any thread, as long as it is used by one at a time.
unsafe impl<T> Send for Sent<T> {}

/// Runs an NCCL call that may never return, on a thread with the device's context.
fn bounded<T: 'static>(
    what: &'static str,
    device: &Device,
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NcclError> {
    let (sender, answers) = channel();
    let device = device.clone();
    let body = move || {
        let bound = device.bind();
        // The receiver has given up if the call was too late.
        let _ = sender.send(Sent(bound.map(|()| call())));
    };
    let started = std::thread::Builder::new().name("nccl".into()).spawn(body);
    started.map_err(|error| NcclError::Missing(format!("cannot start a thread for NCCL: {error}")))?;
    match answers.recv_timeout(limit) {
        Ok(Sent(answer)) => Ok(answer?),
        Err(_) => Err(NcclError::Late { what, seconds: limit.as_secs() }),
    }
}

/// Returns two ranks on the same GPU that NCCL treats as ranks of one node, because their `NCCL_HOSTID` is the same.
/// NCCL does not support such ranks.
fn on_one_gpu(places: &[&(Option<String>, Option<String>)]) -> Option<(usize, usize)> {
    (0..places.len()).find_map(|second| {
        places[..second].iter().position(|first| first == &places[second]).map(|first| (first, second))
    })
}

impl Communicator {
    /// Loads NCCL and creates a communicator of all ranks. This is a collective call: if NCCL is missing on one rank,
    /// every rank returns that error.
    ///
    /// # Errors
    /// Returns [`NcclError::Missing`] if there is no NCCL or no GPU, NCCL's error, or [`NcclError::Late`] if NCCL does
    /// not return in time.
    pub fn open(device: &Device, ranks: &mut Bootstrap, limit: Duration) -> Result<Communicator, NcclError> {
        let loaded = match device {
            Device::Emulated => Err("NCCL needs GPUs, but this is the emulated device".to_owned()),
            Device::Gpu(_) => Functions::load(),
        };
        let mut id = UniqueId([0; 128]);
        let mut version = 0;
        let made = loaded.and_then(|functions| {
            // SAFETY: the pointer refers to a local variable.
            functions.check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
            if ranks.rank() == 0 {
                // SAFETY: the pointer refers to a local variable.
                functions.check("ncclGetUniqueId", unsafe { (functions.unique_id)(&mut id) })?;
            }
            Ok(functions)
        });
        // NCCL takes this variable as the identity of the node, if it is set.
        let node = process_env("NCCL_HOSTID");
        let mine = (made.as_ref().err().cloned(), (device.pci_address(), node), id.0.map(|byte| byte as u8).to_vec());
        let all = ranks.all_gather_values(&mine, "NCCL")?;
        if let Some(why) = all.iter().find_map(|(why, ..)| why.clone()) {
            return Err(NcclError::Missing(why));
        }
        let places: Vec<_> = all.iter().map(|(_, place, _)| place).collect();
        if let Some((first, second)) = on_one_gpu(&places).filter(|_| ranks.same_host()) {
            let gpu = places[first].0.as_deref().unwrap_or("?");
            return Err(NcclError::Missing(format!(
                "NCCL requires one GPU per rank of a node, but {first} and {second} share {gpu}; to run them as two \
                 nodes, set a different NCCL_HOSTID for each"
            )));
        }
        for (byte, sent) in id.0.iter_mut().zip(&all[0].2) {
            *byte = *sent as _;
        }
        let functions = made.map_err(NcclError::Missing)?;
        let (rank, size) = (ranks.rank(), ranks.size());
        let answer = bounded("ncclCommInitRank", device, limit, move || {
            let mut comm = std::ptr::null_mut();
            // SAFETY: the pointer refers to a local variable, and the identifier was created by rank 0.
            let answer = unsafe { (functions.init_rank)(&mut comm, size as c_int, id, rank as c_int) };
            (comm, functions.check("ncclCommInitRank", answer))
        })?;
        let (comm, said) = answer;
        said.map_err(NcclError::Said)?;
        Ok(Communicator { functions, comm, version, rank, size, device: device.clone() })
    }

    /// Returns the version, for example `2.28.3`.
    pub fn version(&self) -> String {
        format!("{}.{}.{}", self.version / 10000, self.version / 100 % 100, self.version % 100)
    }

    /// Returns how all-to-all is implemented: by NCCL's own call, or by sends and receives.
    pub fn all_to_all_by(&self) -> &'static str {
        if self.own_all_to_all().is_some() { "ncclAlltoAll" } else { "grouped ncclSend and ncclRecv" }
    }

    /// Returns NCCL's own all-to-all, or `None` if this version of NCCL does not export it.
    fn own_all_to_all(&self) -> Option<library::OneWay> {
        self.functions.all_to_all.filter(|_| self.version >= ALL_TO_ALL_SINCE)
    }

    fn stream(&self, stream: &Stream) -> Result<*mut c_void, NcclError> {
        stream.handle().ok_or_else(|| NcclError::Missing("NCCL needs a stream of a GPU".into()))
    }

    fn said(&self, call: &str, answer: c_int) -> Result<(), NcclError> {
        self.functions.check(call, answer).map_err(NcclError::Said)
    }

    /// Appends an all-reduce or, with `scatter`, a reduce-scatter of sums.
    ///
    /// # Safety
    /// Both ranges must be device memory of sufficient length and stay valid until the stream has finished the
    /// operation. All ranks must append the same operations in the same order.
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn reduce(&self, call: &Operands, scatter: bool, stream: &Stream) -> Result<(), NcclError> {
        let Operands { from, to, count, of } = *call;
        let (name, function) = if scatter {
            ("ncclReduceScatter", self.functions.reduce_scatter)
        } else {
            ("ncclAllReduce", self.functions.all_reduce)
        };
        let stream = self.stream(stream)?;
        // SAFETY: the caller guarantees that both ranges are valid and long enough.
        let answer = unsafe { function(from as _, to as _, count, of as c_int, SUM, self.comm, stream) };
        self.said(name, answer)
    }

    /// Appends an all-gather.
    ///
    /// # Safety
    /// The requirements are those of [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn all_gather(&self, call: &Operands, stream: &Stream) -> Result<(), NcclError> {
        let Operands { from, to, count, of } = *call;
        let stream = self.stream(stream)?;
        // SAFETY: the caller guarantees that both ranges are valid and long enough.
        let answer = unsafe { (self.functions.all_gather)(from as _, to as _, count, of as c_int, self.comm, stream) };
        self.said("ncclAllGather", answer)
    }

    /// Appends a broadcast.
    ///
    /// # Safety
    /// The requirements are those of [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn broadcast(&self, call: &Operands, root: usize, stream: &Stream) -> Result<(), NcclError> {
        let Operands { from, to, count, of } = *call;
        let (root, stream) = (root as c_int, self.stream(stream)?);
        let function = self.functions.broadcast;
        // SAFETY: the caller guarantees that both ranges are valid and long enough.
        let answer = unsafe { function(from as _, to as _, count, of as c_int, root, self.comm, stream) };
        self.said("ncclBroadcast", answer)
    }

    /// Appends an all-to-all: NCCL's own, or a group of sends and receives before version 2.28.
    ///
    /// # Safety
    /// The requirements are those of [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn all_to_all(&self, call: &Operands, stream: &Stream) -> Result<(), NcclError> {
        let Operands { from, to, count, of } = *call;
        if let Some(function) = self.own_all_to_all() {
            let stream = self.stream(stream)?;
            // SAFETY: the caller guarantees that both ranges are valid and long enough.
            let answer = unsafe { function(from as _, to as _, count, of as c_int, self.comm, stream) };
            return self.said("ncclAlltoAll", answer);
        }
        let at = |rank: usize| (rank * count * of.bytes()) as u64;
        let pairs = (0..self.size).map(|rank| (from + at(rank), rank, to + at(rank), rank));
        // SAFETY: the caller guarantees that both ranges hold `count` elements per rank.
        unsafe { self.exchange(pairs, count, of, stream) }
    }

    /// Appends a send to the next rank and a receive from the previous rank.
    ///
    /// # Safety
    /// The requirements are those of [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn send_receive(&self, call: &Operands, stream: &Stream) -> Result<(), NcclError> {
        let (next, last) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        // SAFETY: the caller guarantees that both ranges are valid and long enough.
        unsafe { self.exchange(std::iter::once((call.from, next, call.to, last)), call.count, call.of, stream) }
    }

    /// Appends a group of sends and receives. Each item of `pairs` contains the source address, the rank to send to,
    /// the destination address, and the rank to receive from. Messages between the same two ranks are matched in the
    /// order of the pairs.
    ///
    /// # Safety
    /// The requirements are those of [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// Returns NCCL's error if a call fails.
    pub unsafe fn exchange(
        &self,
        pairs: impl Iterator<Item = (u64, usize, u64, usize)>,
        count: usize,
        of: NcclType,
        stream: &Stream,
    ) -> Result<(), NcclError> {
        let functions = self.functions;
        let stream = self.stream(stream)?;
        // SAFETY: the call takes no pointers.
        self.said("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let mut result = Ok(());
        for (from, target, to, source) in pairs {
            // SAFETY: the caller guarantees that the ranges of all pairs are valid and long enough.
            let answers = unsafe {
                [
                    (functions.send)(from as _, count, of as c_int, target as c_int, self.comm, stream),
                    (functions.receive)(to as _, count, of as c_int, source as c_int, self.comm, stream),
                ]
            };
            for answer in answers {
                result = result.and_then(|()| self.said("ncclSend and ncclRecv", answer));
            }
        }
        // SAFETY: the call takes no pointers. A group that was started must be ended, even after an error.
        let ended = self.said("ncclGroupEnd", unsafe { (functions.group_end)() });
        result.and(ended)
    }

    /// Checks for errors on the device or between the ranks since the communicator was created.
    ///
    /// # Errors
    /// Returns the asynchronous error that NCCL reports.
    pub fn check(&self) -> Result<(), NcclError> {
        let mut found = 0;
        // SAFETY: the pointer refers to a local variable.
        self.said("ncclCommGetAsyncError", unsafe { (self.functions.async_error)(self.comm, &mut found) })?;
        self.said("an operation", if found == IN_PROGRESS { 0 } else { found })
    }

    /// Destroys the communicator. All ranks must call this.
    ///
    /// # Errors
    /// Returns NCCL's error, or [`NcclError::Late`] if NCCL does not return in time.
    pub fn close(mut self) -> Result<(), NcclError> {
        self.end("ncclCommDestroy", self.functions.destroy)
    }

    /// Aborts the communicator's operations on the device, so that they no longer wait for other ranks.
    ///
    /// # Errors
    /// Returns the same errors as [`close`](Communicator::close).
    pub fn abort(&mut self) -> Result<(), NcclError> {
        self.end("ncclCommAbort", self.functions.abort)
    }

    fn end(&mut self, name: &'static str, function: unsafe extern "C" fn(Comm) -> c_int) -> Result<(), NcclError> {
        if self.comm.is_null() {
            return Ok(());
        }
        let comm = Sent(std::mem::replace(&mut self.comm, std::ptr::null_mut()));
        let functions = self.functions;
        let answer = bounded(name, &self.device, END, move || {
            let Sent(comm) = { comm };
            // SAFETY: `comm` is a communicator of this process and was taken out of its owner, so no other code uses
            // it.
            functions.check(name, unsafe { function(comm) })
        })?;
        answer.map_err(NcclError::Said)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // The communicator is only dropped after another error, which is the one to report.
        let _ = self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::on_one_gpu;

    #[test]
    fn ranks_sharing_gpu_require_separate_nodes() {
        let place = |gpu: &str, node: Option<&str>| (Some(gpu.to_owned()), node.map(str::to_owned));
        let (a, b) = (place("0000:01", None), place("0000:02", None));
        let (x, y) = (place("0000:01", Some("x")), place("0000:01", Some("y")));
        assert_eq!(on_one_gpu(&[&a, &b]), None);
        assert_eq!(on_one_gpu(&[&a, &b, &a]), Some((0, 2)));
        assert_eq!(on_one_gpu(&[&x, &y]), None);
        assert_eq!(on_one_gpu(&[&y, &x, &y]), Some((0, 2)));
    }
}
