//! Sizes of an operation, offsets of its parts, and its bandwidth as defined by nccl-tests.

use clap::ValueEnum;
use kernels::collective::{ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BF16, BROADCAST, F16, F32, REDUCE_SCATTER};
use kernels::signal_check::{SCOPE_BLOCK, SCOPE_THREAD, SCOPE_WARP};
use strum::IntoStaticStr;

/// Operations, numbered as in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[repr(u32)]
pub enum CollectiveOperation {
    /// PE i receives block i of every PE.
    AllToAll = ALL_TO_ALL,
    /// Every PE receives every PE's chunk.
    AllGather = ALL_GATHER,
    /// PE i receives the sum of all chunks i.
    ReduceScatter = REDUCE_SCATTER,
    /// Every PE receives the sum of all buffers.
    AllReduce = ALL_REDUCE,
    /// Every PE receives the root's bytes.
    Broadcast = BROADCAST,
    /// Send to the next rank and receive from the previous one. NCCL only.
    SendRecv = u32::MAX,
}

impl CollectiveOperation {
    /// Returns the name used in cases after `gin-` or `nccl-`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns whether the operation sums numbers.
    pub fn sums(self) -> bool {
        matches!(self, CollectiveOperation::ReduceScatter | CollectiveOperation::AllReduce)
    }

    /// Returns whether the size is the total of one chunk per rank.
    fn by_chunks(self) -> bool {
        matches!(
            self,
            CollectiveOperation::AllToAll | CollectiveOperation::AllGather | CollectiveOperation::ReduceScatter
        )
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as defined by nccl-tests.
    pub fn factor(self, ranks: u64) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            CollectiveOperation::AllReduce => 2.0 * share,
            CollectiveOperation::AllToAll | CollectiveOperation::AllGather | CollectiveOperation::ReduceScatter => {
                share
            }
            CollectiveOperation::Broadcast | CollectiveOperation::SendRecv => 1.0,
        }
    }
}

/// Element types, numbered as in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum Element {
    /// 4 bytes
    F32 = F32,
    /// 2 bytes: the upper half of an f32
    Bf16 = BF16,
    /// 2 bytes: IEEE 754 half precision
    F16 = F16,
}

impl Element {
    /// Returns the bytes of an element.
    pub fn bytes(self) -> u64 {
        if self == Element::F32 { 4 } else { 2 }
    }

    /// Returns the difference between 1 and the next larger number.
    pub fn epsilon(self) -> f64 {
        match self {
            Element::F32 => f64::from(f32::EPSILON),
            Element::Bf16 => 1.0 / 128.0,
            Element::F16 => 1.0 / 1024.0,
        }
    }
}

/// Threads that make the calls, numbered as in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum CallScope {
    /// One thread of each block
    Thread = SCOPE_THREAD,
    /// One warp of each block
    Warp = SCOPE_WARP,
    /// All threads of each block
    Block = SCOPE_BLOCK,
}

/// Location of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResultPlacement {
    /// Writes the result to separate memory
    OutOfPlace,
    /// Overwrites the input
    InPlace,
}

/// An operation of a given size among `ranks` ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The operation.
    pub operation: CollectiveOperation,
    /// Number of ranks.
    pub ranks: u64,
    /// Bytes per chunk. The last chunks of an all-reduce or a broadcast may be shorter.
    pub chunk: u64,
    /// Size as defined by nccl-tests: the total of all chunks for all-to-all, all-gather and reduce-scatter.
    pub bytes: u64,
}

impl Shape {
    /// Rounds `size` down to whole elements, but to at least one element, or one per rank for operations by chunks.
    pub fn new(operation: CollectiveOperation, ranks: u64, size: u64, element: u64) -> Shape {
        if operation.by_chunks() {
            let chunk = (size / ranks / element).max(1) * element;
            return Shape { operation, ranks, chunk, bytes: chunk * ranks };
        }
        let bytes = (size / element).max(1) * element;
        Shape { operation, ranks, chunk: bytes.div_ceil(ranks).next_multiple_of(16), bytes }
    }

    /// Returns the bytes of a rank's input.
    pub fn input(&self) -> u64 {
        if self.operation == CollectiveOperation::AllGather { self.chunk } else { self.bytes }
    }

    /// Returns the bytes of a rank's output.
    pub fn output(&self) -> u64 {
        if self.operation == CollectiveOperation::ReduceScatter { self.chunk } else { self.bytes }
    }

    /// Returns the offsets of this rank's input and output in the memory that they share in place. `None` if the
    /// operation has no in-place form.
    pub fn in_place(&self, rank: u64) -> Option<(u64, u64)> {
        match self.operation {
            CollectiveOperation::AllGather => Some((rank * self.chunk, 0)),
            CollectiveOperation::ReduceScatter => Some((0, rank * self.chunk)),
            CollectiveOperation::AllReduce | CollectiveOperation::Broadcast => Some((0, 0)),
            CollectiveOperation::AllToAll | CollectiveOperation::SendRecv => None,
        }
    }

    /// Returns the number of times that the operation can run on the same memory without changing the result.
    pub fn repeatable(&self, place: ResultPlacement) -> u32 {
        if place == ResultPlacement::InPlace && self.operation.sums() { 1 } else { 2 }
    }

    /// Returns the number of bytes that one rank sends to another: a chunk, or all bytes.
    pub fn message(&self) -> u64 {
        if self.operation.by_chunks() { self.chunk } else { self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_nccl_tests() {
        let shape = |operation, size| Shape::new(operation, 4, size, 4);
        assert_eq!(
            (shape(CollectiveOperation::AllToAll, 1000).chunk, shape(CollectiveOperation::AllToAll, 1000).bytes),
            (248, 992)
        );
        assert_eq!(
            (shape(CollectiveOperation::AllGather, 1).input(), shape(CollectiveOperation::AllGather, 1).output()),
            (4, 16)
        );
        assert_eq!(
            (
                shape(CollectiveOperation::ReduceScatter, 64).input(),
                shape(CollectiveOperation::ReduceScatter, 64).output()
            ),
            (64, 16)
        );
        assert_eq!(
            (shape(CollectiveOperation::AllReduce, 1003).bytes, shape(CollectiveOperation::AllReduce, 1003).chunk),
            (1000, 256)
        );
        assert_eq!(shape(CollectiveOperation::AllGather, 64).in_place(2), Some((32, 0)));
        assert_eq!(CollectiveOperation::AllReduce.factor(4), 1.5);
    }
}
