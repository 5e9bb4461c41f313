//! NCCL, to be measured beside: loaded at run time, every wait bounded.
//!
//! NCCL's calls on a stream return at once, and what they wait for on the device has no bound of its own. So whoever waits for the stream asks
//! [`Communicator::check`] now and then, and ends what takes too long by [`Communicator::abort`]. Calls that may block (the start,
//! the end) are made by threads that are left behind when they do not return in time.

mod library;

pub use library::VARIABLE;

use ginlab_bootstrap::{Bootstrap, BootstrapError, process_env};
use ginlab_cuda::{Device, DeviceError, Stream};
use library::{Comm, Functions, UniqueId};
use std::ffi::{c_int, c_void};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The version from which NCCL has an all-to-all of its own.
const ALL_TO_ALL_SINCE: i32 = 22800;
/// Longest wait for NCCL to give a communicator up.
const END: Duration = Duration::from_secs(10);
/// `ncclSum`.
const SUM: c_int = 0;
/// `ncclInProgress`: no error.
const IN_PROGRESS: c_int = 7;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// It is not here, or cannot be used here.
    #[error("{0}")]
    Missing(String),
    /// It said so.
    #[error("NCCL: {0}")]
    Said(String),
    /// It did not come back.
    #[error("NCCL: {what} did not return within {seconds} s")]
    Late {
        /// What was asked.
        what: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// The device's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The ranks'.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
}

/// Types of numbers, as NCCL counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ncclFloat16`.
    F16 = 6,
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

impl Type {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        if self == Type::F32 { 4 } else { 2 }
    }
}

/// An operation, with addresses of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What is sent.
    pub from: u64,
    /// Where it goes.
    pub to: u64,
    /// Numbers: of one chunk for all-to-all, all-gather and reduce-scatter, otherwise of all.
    pub count: usize,
    /// Their type.
    pub of: Type,
}

/// This rank's part of a communicator of all ranks.
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

/// A pointer that another thread uses.
struct Sent<T>(T);
// SAFETY: NCCL's communicators are used by one thread at a time, and move between threads.
unsafe impl<T> Send for Sent<T> {}

/// Runs a call of NCCL that may never return: in a thread with the device's context.
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
        // Nobody listens any more when it was too late.
        let _ = sender.send(Sent(bound.map(|()| call())));
    };
    let started = std::thread::Builder::new().name("nccl".into()).spawn(body);
    started.map_err(|error| NcclError::Missing(format!("no thread for NCCL: {error}")))?;
    match answers.recv_timeout(limit) {
        Ok(Sent(answer)) => Ok(answer?),
        Err(_) => Err(NcclError::Late { what, seconds: limit.as_secs() }),
    }
}

/// Two ranks of one GPU that NCCL takes for ranks of one node: by their GPU's address and their `NCCL_HOSTID`.
fn on_one_gpu(places: &[&(Option<String>, Option<String>)]) -> Option<(usize, usize)> {
    (0..places.len()).find_map(|second| {
        places[..second].iter().position(|first| first == &places[second]).map(|first| (first, second))
    })
}

impl Communicator {
    /// Loads NCCL and joins all ranks. Collective: when it is missing on one rank, every rank gets that as its answer.
    ///
    /// # Errors
    /// [`NcclError::Missing`] where there is none, or no GPU; what NCCL says; that it did not come back in time.
    pub fn open(device: &Device, ranks: &mut Bootstrap, limit: Duration) -> Result<Communicator, NcclError> {
        let loaded = match device {
            Device::Emulated => Err("NCCL needs GPUs, and this is the emulated device".to_owned()),
            Device::Gpu(_) => Functions::load(),
        };
        let mut id = UniqueId([0; 128]);
        let mut version = 0;
        let made = loaded.and_then(|functions| {
            // SAFETY: a local to write to.
            functions.check("ncclGetVersion", unsafe { (functions.version)(&mut version) })?;
            if ranks.rank() == 0 {
                // SAFETY: as above.
                functions.check("ncclGetUniqueId", unsafe { (functions.unique_id)(&mut id) })?;
            }
            Ok(functions)
        });
        // What NCCL takes for a node, where it is told.
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
                "NCCL wants a GPU for each rank of a node: {first} and {second} have {gpu}; it takes them for two nodes where each has an \
                 NCCL_HOSTID of its own"
            )));
        }
        for (byte, sent) in id.0.iter_mut().zip(&all[0].2) {
            *byte = *sent as _;
        }
        let functions = made.map_err(NcclError::Missing)?;
        let (rank, size) = (ranks.rank(), ranks.size());
        let answer = bounded("ncclCommInitRank", device, limit, move || {
            let mut comm = std::ptr::null_mut();
            // SAFETY: a local to write to; the identifier is rank 0's.
            let answer = unsafe { (functions.init_rank)(&mut comm, size as c_int, id, rank as c_int) };
            (comm, functions.check("ncclCommInitRank", answer))
        })?;
        let (comm, said) = answer;
        said.map_err(NcclError::Said)?;
        Ok(Communicator { functions, comm, version, rank, size, device: device.clone() })
    }

    /// As `2.28.3`.
    pub fn version(&self) -> String {
        format!("{}.{}.{}", self.version / 10000, self.version / 100 % 100, self.version % 100)
    }

    /// How all-to-all is made: by its own call, or by sends and receives.
    pub fn all_to_all_by(&self) -> &'static str {
        if self.own_all_to_all().is_some() { "ncclAlltoAll" } else { "grouped ncclSend and ncclRecv" }
    }

    /// Not before the version that has it for users.
    fn own_all_to_all(&self) -> Option<library::OneWay> {
        self.functions.all_to_all.filter(|_| self.version >= ALL_TO_ALL_SINCE)
    }

    fn stream(&self, stream: &Stream) -> Result<*mut c_void, NcclError> {
        stream.handle().ok_or_else(|| NcclError::Missing("NCCL needs a stream of a GPU".into()))
    }

    fn said(&self, call: &str, answer: c_int) -> Result<(), NcclError> {
        self.functions.check(call, answer).map_err(NcclError::Said)
    }

    /// Appends an all-reduce, or a reduce-scatter, by sums.
    ///
    /// # Safety
    /// Both memories are of the device and long enough until the stream has done it, which all ranks do in the same order.
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn reduce(&self, call: &Call, scatter: bool, stream: &Stream) -> Result<(), NcclError> {
        let Call { from, to, count, of } = *call;
        let (name, function) = if scatter {
            ("ncclReduceScatter", self.functions.reduce_scatter)
        } else {
            ("ncclAllReduce", self.functions.all_reduce)
        };
        let stream = self.stream(stream)?;
        // SAFETY: the caller's contract.
        let answer = unsafe { function(from as _, to as _, count, of as c_int, SUM, self.comm, stream) };
        self.said(name, answer)
    }

    /// Appends an all-gather.
    ///
    /// # Safety
    /// As [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn all_gather(&self, call: &Call, stream: &Stream) -> Result<(), NcclError> {
        let Call { from, to, count, of } = *call;
        let stream = self.stream(stream)?;
        // SAFETY: the caller's contract.
        let answer = unsafe { (self.functions.all_gather)(from as _, to as _, count, of as c_int, self.comm, stream) };
        self.said("ncclAllGather", answer)
    }

    /// Appends a broadcast.
    ///
    /// # Safety
    /// As [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn broadcast(&self, call: &Call, root: usize, stream: &Stream) -> Result<(), NcclError> {
        let Call { from, to, count, of } = *call;
        let (root, stream) = (root as c_int, self.stream(stream)?);
        let function = self.functions.broadcast;
        // SAFETY: the caller's contract.
        let answer = unsafe { function(from as _, to as _, count, of as c_int, root, self.comm, stream) };
        self.said("ncclBroadcast", answer)
    }

    /// Appends an all-to-all: NCCL's own, before 2.28 a group of sends and receives.
    ///
    /// # Safety
    /// As [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn all_to_all(&self, call: &Call, stream: &Stream) -> Result<(), NcclError> {
        let Call { from, to, count, of } = *call;
        if let Some(function) = self.own_all_to_all() {
            let stream = self.stream(stream)?;
            // SAFETY: the caller's contract.
            let answer = unsafe { function(from as _, to as _, count, of as c_int, self.comm, stream) };
            return self.said("ncclAlltoAll", answer);
        }
        let at = |rank: usize| (rank * count * of.bytes()) as u64;
        let pairs = (0..self.size).map(|rank| (from + at(rank), rank, to + at(rank), rank));
        // SAFETY: the caller's contract.
        unsafe { self.exchange(pairs, count, of, stream) }
    }

    /// Appends a send to the next rank and a receive from the one before.
    ///
    /// # Safety
    /// As [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn send_receive(&self, call: &Call, stream: &Stream) -> Result<(), NcclError> {
        let (next, last) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        // SAFETY: the caller's contract.
        unsafe { self.exchange(std::iter::once((call.from, next, call.to, last)), call.count, call.of, stream) }
    }

    /// Appends a group of pairs: what is sent and to whom, where what comes goes and from whom. What two ranks send each other is received in
    /// the order of the pairs.
    ///
    /// # Safety
    /// As [`reduce`](Communicator::reduce).
    ///
    /// # Errors
    /// NCCL's.
    pub unsafe fn exchange(
        &self,
        pairs: impl Iterator<Item = (u64, usize, u64, usize)>,
        count: usize,
        of: Type,
        stream: &Stream,
    ) -> Result<(), NcclError> {
        let functions = self.functions;
        let stream = self.stream(stream)?;
        // SAFETY: no pointers.
        self.said("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let mut result = Ok(());
        for (from, target, to, source) in pairs {
            // SAFETY: the caller's contract.
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
        // SAFETY: as above. A group that was begun is ended, also behind an error.
        let ended = self.said("ncclGroupEnd", unsafe { (functions.group_end)() });
        result.and(ended)
    }

    /// What has gone wrong on the device or between the ranks since.
    ///
    /// # Errors
    /// NCCL's.
    pub fn check(&self) -> Result<(), NcclError> {
        let mut found = 0;
        // SAFETY: a local to write to.
        self.said("ncclCommGetAsyncError", unsafe { (self.functions.async_error)(self.comm, &mut found) })?;
        self.said("an operation", if found == IN_PROGRESS { 0 } else { found })
    }

    /// Gives the communicator up; all ranks do so.
    ///
    /// # Errors
    /// NCCL's, or that it did not come back.
    pub fn close(mut self) -> Result<(), NcclError> {
        self.end("ncclCommDestroy", self.functions.destroy)
    }

    /// Ends the communicator's operations on the device, which then wait for nobody.
    ///
    /// # Errors
    /// As [`close`](Communicator::close).
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
            // SAFETY: a communicator of this process, which nobody uses any more: it was taken out of its owner.
            functions.check(name, unsafe { function(comm) })
        })?;
        answer.map_err(NcclError::Said)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Only after another error, which is the one to be told.
        let _ = self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::on_one_gpu;

    #[test]
    fn ranks_of_one_gpu_are_refused_unless_they_are_nodes() {
        let place = |gpu: &str, node: Option<&str>| (Some(gpu.to_owned()), node.map(str::to_owned));
        let (a, b) = (place("0000:01", None), place("0000:02", None));
        let (x, y) = (place("0000:01", Some("x")), place("0000:01", Some("y")));
        assert_eq!(on_one_gpu(&[&a, &b]), None);
        assert_eq!(on_one_gpu(&[&a, &b, &a]), Some((0, 2)));
        assert_eq!(on_one_gpu(&[&x, &y]), None);
        assert_eq!(on_one_gpu(&[&y, &x, &y]), Some((0, 2)));
    }
}
