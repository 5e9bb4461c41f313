//! Writes of network cards into GPU memory: what orders them before the signal that tells of them.
//!
//! A card writes bytes into GPU memory and its completion into host memory, by two ways of which neither waits for the other. A proxy
//! that sees the completion and counts a signal could be seen by a running kernel before the bytes are. A device says by an attribute
//! whether it orders such writes for its own kernels; where it does not, the host flushes them before it tells of them.

use super::{Device, DeviceError};
use std::fmt;

/// What orders the writes of cards into a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardWrites {
    /// The device, for its own kernels. Also where there is no GPU.
    Ordered,
    /// A [`Flush`] by the host.
    Flushed,
    /// Nothing, for this reason: cards must not write there while a kernel reads.
    Unordered(String),
}

impl CardWrites {
    /// By the attributes GPU_DIRECT_RDMA_WRITES_ORDERING and GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, as far as the driver knows them.
    fn by(ordering: Option<i32>, flush_options: Option<i32>) -> CardWrites {
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: consumers on the device itself need no flush. ALL_DEVICES (200) says more.
        const OWNER: i32 = 100;
        // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: cuFlushGPUDirectRDMAWrites works.
        const HOST: i32 = 1;
        match (ordering, flush_options) {
            (Some(OWNER..), _) => CardWrites::Ordered,
            (_, Some(options)) if options & HOST != 0 => CardWrites::Flushed,
            (ordering, options) => {
                let number = |value: Option<i32>| value.map_or("unknown".to_owned(), |value| value.to_string());
                CardWrites::Unordered(format!(
                    "the GPU does not order writes of cards (GPU_DIRECT_RDMA_WRITES_ORDERING {}), and the driver cannot flush them \
                     (FLUSH_WRITES_OPTIONS {})",
                    number(ordering),
                    number(options)
                ))
            }
        }
    }

    /// For headers: `GPU memory: writes by cards are ordered by the device`.
    #[must_use]
    pub fn note(&self) -> String {
        match self {
            CardWrites::Ordered => "GPU memory: writes by cards are ordered by the device".into(),
            CardWrites::Flushed => {
                "GPU memory: writes by cards are flushed by the proxy before it tells of them".into()
            }
            CardWrites::Unordered(why) => format!("GPU memory: cards must not write it: {why}"),
        }
    }
}

impl Device {
    /// What orders the writes of cards into this device's memory.
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

    /// The flush that [`CardWrites::Flushed`] asks for; `None` where none is needed.
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

/// Makes what cards have written into GPU memory visible to the GPU's kernels. For the thread that has seen the completions, before it
/// tells of them.
pub struct Flush(Box<dyn FnMut() -> Result<(), DeviceError> + Send>);

impl Flush {
    /// This call.
    pub fn by(call: impl FnMut() -> Result<(), DeviceError> + Send + 'static) -> Flush {
        Flush(Box::new(call))
    }

    /// Flushes.
    ///
    /// # Errors
    /// The driver's.
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
    fn a_device_that_orders_needs_no_flush_and_one_that_can_do_neither_is_refused() {
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
            // Flushing by a stream's memory operation alone is nothing that a CPU thread can do between poll and count.
            for options in [None, Some(0), Some(2)] {
                let CardWrites::Unordered(why) = CardWrites::by(ordering, options) else {
                    panic!("{ordering:?} {options:?}")
                };
                assert!(why.contains("cannot flush"), "{why}");
            }
        }
    }

    #[test]
    fn without_a_gpu_nothing_is_flushed() {
        assert_eq!(Device::Emulated.card_writes(), CardWrites::Ordered);
        assert!(Device::Emulated.card_flush().is_none());
    }
}
