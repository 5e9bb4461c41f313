//! Writes of NICs into GPU memory, and the mechanism that orders them before the signal that announces them.
//!
//! A NIC writes data into GPU memory and its completion into host memory. These writes take different paths and are not
//! ordered with each other. If a proxy observes the completion and counts a signal, a running kernel might observe the
//! signal before the data. A device reports in an attribute whether it orders such writes for its own kernels. If it
//! does not, the host flushes them before it announces them.

use super::{Device, DeviceError};
use std::fmt;

/// Mechanism that orders NICs' writes into a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardWrites {
    /// The device orders the writes for its own kernels. Also used without a GPU.
    Ordered,
    /// The host must run a [`Flush`] before it announces the writes.
    Flushed,
    /// No mechanism is available, for this reason. NICs must not write to the memory while a kernel reads it.
    Unordered(String),
}

impl CardWrites {
    /// Selects the mechanism from the attributes GPU_DIRECT_RDMA_WRITES_ORDERING and
    /// GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, which are `None` if the driver does not support them.
    fn by(ordering: Option<i32>, flush_options: Option<i32>) -> CardWrites {
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: consumers on the device itself need no flush. ALL_DEVICES (200) is
        // stronger.
        const OWNER: i32 = 100;
        // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: cuFlushGPUDirectRDMAWrites works.
        const HOST: i32 = 1;
        match (ordering, flush_options) {
            (Some(OWNER..), _) => CardWrites::Ordered,
            (_, Some(options)) if options & HOST != 0 => CardWrites::Flushed,
            (ordering, options) => {
                let number = |value: Option<i32>| value.map_or("unknown".to_owned(), |value| value.to_string());
                CardWrites::Unordered(format!(
                    "the GPU does not order writes of NICs (GPU_DIRECT_RDMA_WRITES_ORDERING {}), and the driver cannot \
                     flush them (FLUSH_WRITES_OPTIONS {})",
                    number(ordering),
                    number(options)
                ))
            }
        }
    }

    /// Returns the note for headers, for example `GPU memory: writes by cards are ordered by the device`.
    #[must_use]
    pub fn note(&self) -> String {
        match self {
            CardWrites::Ordered => "GPU memory: writes of NICs are ordered by the device".into(),
            CardWrites::Flushed => "GPU memory: writes of NICs are flushed by the proxy before it reports them".into(),
            CardWrites::Unordered(why) => format!("GPU memory: NICs must not write to it: {why}"),
        }
    }
}

impl Device {
    /// Returns the mechanism that orders NICs' writes into this device's memory.
    #[must_use]
    pub fn card_writes(&self) -> CardWrites {
        match self {
            Device::Emulated => CardWrites::Ordered,
            Device::Gpu(gpu) => {
                let (ordering, options) = gpu.card_writes();
                CardWrites::by(ordering, options)
            }
        }
    }

    /// Returns the flush for [`CardWrites::Flushed`]; `None` if no flush is needed.
    #[must_use]
    pub fn card_flush(&self) -> Option<Flush> {
        match self {
            Device::Gpu(gpu) if self.card_writes() == CardWrites::Flushed => {
                let gpu = gpu.clone();
                Some(Flush::by(move || gpu.flush_card_writes()))
            }
            _ => None,
        }
    }
}

/// Makes NICs' writes to GPU memory visible to the GPU's kernels. The thread that has polled the completions must run
/// it before it announces them.
pub struct Flush(Box<dyn FnMut() -> Result<(), DeviceError> + Send>);

impl Flush {
    /// Creates a flush that runs `call`.
    pub fn by(call: impl FnMut() -> Result<(), DeviceError> + Send + 'static) -> Flush {
        Flush(Box::new(call))
    }

    /// Runs the flush.
    ///
    /// # Errors
    /// Returns the driver's error if the flush fails.
    pub fn run(&mut self) -> Result<(), DeviceError> {
        (self.0)()
    }
}

impl fmt::Debug for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flush")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_requirement_follows_device_ordering() {
        for options in [None, Some(0), Some(1), Some(3)] {
            assert_eq!(
                [100, 200].map(|ordering| CardWrites::by(Some(ordering), options)),
                [const { CardWrites::Ordered }; 2]
            );
        }
        for ordering in [None, Some(0)] {
            assert_eq!(
                [1, 3].map(|options| CardWrites::by(ordering, Some(options))),
                [const { CardWrites::Flushed }; 2]
            );
            // A flush by a stream memory operation is insufficient: a CPU thread cannot use it between polling and
            // counting.
            for options in [None, Some(0), Some(2)] {
                let CardWrites::Unordered(why) = CardWrites::by(ordering, options) else {
                    panic!("{ordering:?} {options:?}")
                };
                assert!(why.contains("cannot flush"), "{why}");
            }
        }
    }

    #[test]
    fn host_memory_needs_no_flush() {
        assert_eq!(Device::Emulated.card_writes(), CardWrites::Ordered);
        assert!(Device::Emulated.card_flush().is_none());
    }
}
