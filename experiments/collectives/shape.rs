//! What an operation moves: its sizes, where its parts lie, what counts as its bandwidth, and what the wires allow.

use clap::ValueEnum;
use kernels::collective::{ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BF16, BROADCAST, F16, F32, REDUCE_SCATTER};
use strum::IntoStaticStr;

/// The operations, by the number that kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[repr(u32)]
pub enum Operation {
    AllToAll = ALL_TO_ALL,
    AllGather = ALL_GATHER,
    ReduceScatter = REDUCE_SCATTER,
    AllReduce = ALL_REDUCE,
    Broadcast = BROADCAST,
    /// To the next rank, from the one before; NCCL's alone.
    SendRecv = u32::MAX,
}

impl Operation {
    /// As cases are called, behind `gin-` or `nccl-`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether numbers are added.
    pub fn sums(self) -> bool {
        matches!(self, Operation::ReduceScatter | Operation::AllReduce)
    }

    /// Whether the size is that of a chunk for each rank, all together.
    fn by_chunks(self) -> bool {
        matches!(self, Operation::AllToAll | Operation::AllGather | Operation::ReduceScatter)
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests has it.
    pub fn factor(self, ranks: u64) -> f64 {
        let share = (ranks - 1) as f64 / ranks as f64;
        match self {
            Operation::AllReduce => 2.0 * share,
            Operation::AllToAll | Operation::AllGather | Operation::ReduceScatter => share,
            Operation::Broadcast | Operation::SendRecv => 1.0,
        }
    }
}

/// Types of numbers, as the kernels count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum Element {
    /// 4 bytes.
    F32 = F32,
    /// 2 bytes: the upper half of an f32.
    Bf16 = BF16,
    /// 2 bytes: IEEE 754.
    F16 = F16,
}

impl Element {
    pub fn bytes(self) -> u64 {
        if self == Element::F32 { 4 } else { 2 }
    }

    /// The difference between 1 and the next number.
    pub fn epsilon(self) -> f64 {
        match self {
            Element::F32 => f64::from(f32::EPSILON),
            Element::Bf16 => 1.0 / 128.0,
            Element::F16 => 1.0 / 1024.0,
        }
    }
}

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// To other memory.
    OutOfPlace,
    /// Over the input.
    InPlace,
}

/// An operation of a size among so many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub operation: Operation,
    pub ranks: u64,
    /// Bytes of a chunk; the last ones of an all-reduce or a broadcast may be shorter.
    pub chunk: u64,
    /// As nccl-tests counts it: of all chunks for all-to-all, all-gather and reduce-scatter.
    pub bytes: u64,
}

impl Shape {
    /// The nearest size below that is whole numbers; one for each rank at least.
    pub fn new(operation: Operation, ranks: u64, size: u64, element: u64) -> Shape {
        if operation.by_chunks() {
            let chunk = (size / ranks / element).max(1) * element;
            return Shape { operation, ranks, chunk, bytes: chunk * ranks };
        }
        let bytes = (size / element).max(1) * element;
        Shape { operation, ranks, chunk: bytes.div_ceil(ranks).next_multiple_of(16), bytes }
    }

    /// Bytes that a rank gives.
    pub fn input(&self) -> u64 {
        if self.operation == Operation::AllGather { self.chunk } else { self.bytes }
    }

    /// Bytes that a rank gets.
    pub fn output(&self) -> u64 {
        if self.operation == Operation::ReduceScatter { self.chunk } else { self.bytes }
    }

    /// Where this rank's input and output begin in the memory that they share in place; `None` where there is no such thing.
    pub fn in_place(&self, rank: u64) -> Option<(u64, u64)> {
        match self.operation {
            Operation::AllGather => Some((rank * self.chunk, 0)),
            Operation::ReduceScatter => Some((0, rank * self.chunk)),
            Operation::AllReduce | Operation::Broadcast => Some((0, 0)),
            Operation::AllToAll | Operation::SendRecv => None,
        }
    }

    /// How often the same memory may be worked on without another result.
    pub fn repeatable(&self, place: Place) -> u32 {
        if place == Place::InPlace && self.operation.sums() { 1 } else { 2 }
    }

    /// Bytes that go to one rank: a chunk, or all.
    pub fn message(&self) -> u64 {
        if self.operation.by_chunks() { self.chunk } else { self.bytes }
    }
}

/// The wires of a rank, in GB/s one way; nothing where it is not known, or there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wires {
    /// Ranks of a node.
    pub local: u64,
    /// To the ranks of the node, all together.
    pub nvlink: Option<f64>,
    /// All rails of a rank.
    pub rails: Option<f64>,
}

impl Wires {
    /// The most bus bandwidth that the wires allow, whatever the algorithm: the smaller of what NVLink and what rails allow (the page has
    /// the formulas). Nothing where a wire that is needed is not known.
    pub fn ceiling(&self, operation: Operation, ranks: u64) -> Option<f64> {
        let (n, local) = (ranks as f64, self.local as f64);
        let nodes = n / local;
        let inside =
            |share: f64| if self.local > 1 { self.nvlink.map(|rate| rate * share) } else { Some(f64::INFINITY) };
        let between = |share: f64| if nodes > 1.0 { self.rails.map(|rate| rate * share) } else { Some(f64::INFINITY) };
        let [inside, between] = match operation {
            Operation::AllToAll => [inside((n - 1.0) / (local - 1.0)), between((n - 1.0) / (n - local))],
            Operation::AllGather | Operation::ReduceScatter | Operation::AllReduce => {
                [inside((n - 1.0) / (nodes * (local - 1.0))), between((n - 1.0) / (nodes - 1.0))]
            }
            // All rails of a node carry a part.
            Operation::Broadcast => [inside(1.0), between(local)],
            Operation::SendRecv => [inside(1.0), between(1.0)],
        };
        Some(inside?.min(between?)).filter(|ceiling| ceiling.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        let shape = |operation, size| Shape::new(operation, 4, size, 4);
        assert_eq!((shape(Operation::AllToAll, 1000).chunk, shape(Operation::AllToAll, 1000).bytes), (248, 992));
        assert_eq!((shape(Operation::AllGather, 1).input(), shape(Operation::AllGather, 1).output()), (4, 16));
        assert_eq!(
            (shape(Operation::ReduceScatter, 64).input(), shape(Operation::ReduceScatter, 64).output()),
            (64, 16)
        );
        assert_eq!((shape(Operation::AllReduce, 1003).bytes, shape(Operation::AllReduce, 1003).chunk), (1000, 256));
        assert_eq!(shape(Operation::AllGather, 64).in_place(2), Some((32, 0)));
        assert_eq!(Operation::AllReduce.factor(4), 1.5);
    }

    /// The published ceilings of p5: nodes of 8, 50 GB/s of rails.
    #[test]
    fn ceilings_of_p5() {
        let wires = Wires { local: 8, nvlink: Some(450.0), rails: Some(50.0) };
        for (ranks, expected) in [(16, 93.75), (32, 64.58), (64, 56.25), (128, 52.92), (256, 51.41)] {
            let ceiling = wires.ceiling(Operation::AllToAll, ranks).expect("all wires are known");
            assert!((ceiling - expected).abs() < 0.01, "{ranks}: {ceiling}");
        }
        // Inside one node NVLink alone counts, and without any rails nothing is known between nodes.
        assert_eq!(wires.ceiling(Operation::AllReduce, 8), Some(450.0));
        assert_eq!(Wires { rails: None, ..wires }.ceiling(Operation::AllGather, 16), None);
        assert_eq!(Wires { local: 1, ..wires }.ceiling(Operation::AllGather, 16), Some(50.0));
    }
}
