//! Inputs of ranks and expected results. Results are checked element by element, against sums that the CPU computes in
//! the order that the kernels guarantee.
//!
//! A rank's numbers repeat with a prime period, so that expected results, including sums, have the same period. A
//! misplaced chunk is detected nevertheless, because no chunk size is a multiple of the period.

use super::shape::{CollectiveOperation, Element, Shape};
use half::{bf16, f16};
use kernels::pattern::{mixed, seed};

/// Period of a rank's numbers: the largest prime below 2^16.
const PERIOD: u64 = 65521;

/// Flag in the number of a run: negates its numbers.
pub const NEGATIVE: u32 = 1 << 30;
/// Flag in the number of a run: selects different numbers.
pub const OTHER: u32 = 1 << 31;

/// Contents of the output before an operation.
pub const POISON: u8 = 0xA5;

/// Result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternCheck {
    /// Number of wrong elements.
    pub wrong: u64,
    /// Number of ranks whose data is in the result. `None` if it cannot be derived from a wrong sum.
    pub heard: Option<u64>,
}

/// Returns the first `count` numbers of one rank, each representable in the type, but at most one period.
fn numbers(element: Element, rank: u64, run: u32, count: u64) -> Vec<f32> {
    let seed = seed(rank as u32, run & !NEGATIVE, 0);
    let sign = if run & NEGATIVE == 0 { 1.0 } else { -1.0 };
    let number = |index| {
        let bits = mixed(seed, index);
        // Numbers of several magnitudes, so that sums in different orders differ.
        let value = ((bits & 0xf_ffff) as f32 - 524_288.0) / (65_536u32 << (bits >> 20 & 7)) as f32;
        sign * rounded(element, value)
    };
    (0..count.min(PERIOD)).map(number).collect()
}

fn rounded(element: Element, value: f32) -> f32 {
    match element {
        Element::F32 => value,
        Element::Bf16 => bf16::from_f32(value).to_f32(),
        Element::F16 => f16::from_f32(value).to_f32(),
    }
}

fn encoded(element: Element, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * element.bytes() as usize);
    for value in values {
        match element {
            Element::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
            Element::Bf16 => bytes.extend_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            Element::F16 => bytes.extend_from_slice(&f16::from_f32(*value).to_le_bytes()),
        }
    }
    bytes
}

fn decoded(element: Element, bytes: &[u8]) -> f64 {
    match (element, bytes) {
        (Element::F32, [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
        (Element::Bf16, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f64(),
        (Element::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f64(),
        _ => f64::NAN,
    }
}

struct Sums {
    /// Sums in the order that the kernels guarantee, encoded.
    exact: Vec<u8>,
    /// Sums in f64, and the permitted deviation of sums in another order.
    about: Vec<(f64, f64)>,
}

impl Sums {
    /// Sums the ranks of each node in order, rounds if there are several nodes, then sums the nodes.
    fn new(element: Element, Shape { ranks, bytes, .. }: Shape, local: u64, run: u32) -> Sums {
        let count = (bytes / element.bytes()).min(PERIOD);
        let all: Vec<Vec<f32>> = (0..ranks).map(|rank| numbers(element, rank, run, count)).collect();
        let (mut exact, mut about) = (Vec::new(), Vec::new());
        for index in 0..count as usize {
            let of_node =
                |node: &[Vec<f32>]| node.iter().map(|numbers| numbers[index]).reduce(|a, b| a + b).unwrap_or(0.0);
            let nodes = all.chunks(local as usize).map(|node| rounded(element, of_node(node)));
            exact.push(nodes.reduce(|a, b| a + b).unwrap_or(0.0));
            let values = || all.iter().map(|numbers| f64::from(numbers[index]));
            let bound = ranks as f64 * element.epsilon() * values().map(f64::abs).sum::<f64>();
            about.push((values().sum(), bound));
        }
        Sums { exact: encoded(element, &exact), about }
    }
}

/// Inputs and expected results of one measurement.
pub struct Pattern {
    element: Element,
    pub shape: Shape,
    root: u64,
    run: u32,
    sums: Option<Sums>,
}

impl Pattern {
    /// Creates the pattern. `local` ranks form a node, whose sums are computed first. `run` selects the numbers.
    pub fn new(element: Element, shape: Shape, local: u64, root: u64, run: u32) -> Pattern {
        let sums = shape.operation.sums().then(|| Sums::new(element, shape, local, run));
        Pattern { element, shape, root, run, sums }
    }

    /// Returns the input of a rank.
    pub fn input(&self, rank: u64) -> Vec<u8> {
        self.given(rank, 0, self.shape.input())
    }

    /// Returns `bytes` bytes of a rank's input, starting at number `first`.
    fn given(&self, rank: u64, first: u64, bytes: u64) -> Vec<u8> {
        let (element, size) = (self.element, self.element.bytes());
        tiled(&encoded(element, &numbers(element, rank, self.run, first + bytes / size)), first * size, bytes)
    }

    /// Checks a rank's result. With `exactly`, sums must have been computed in the order that the kernels guarantee.
    /// Otherwise any order is accepted, and sums may deviate by ranks x epsilon x sum of magnitudes.
    pub fn check(&self, rank: u64, result: &[u8], exactly: bool) -> PatternCheck {
        let (shape, size) = (self.shape, self.element.bytes());
        let from =
            |other: u64, first: u64, part: &[u8]| differing(part, &self.given(other, first, part.len() as u64), size);
        let (mut wrong, mut heard) = (0, 0);
        match shape.operation {
            CollectiveOperation::AllToAll | CollectiveOperation::AllGather => {
                let first =
                    if shape.operation == CollectiveOperation::AllToAll { rank * shape.chunk / size } else { 0 };
                for (other, part) in result.chunks_exact(shape.chunk as usize).enumerate() {
                    let found = from(other as u64, first, part);
                    wrong += found;
                    heard += u64::from(found == 0);
                }
                PatternCheck { wrong, heard: Some(heard) }
            }
            CollectiveOperation::Broadcast | CollectiveOperation::SendRecv => {
                let before = (rank + shape.ranks - 1) % shape.ranks;
                wrong =
                    from(if shape.operation == CollectiveOperation::Broadcast { self.root } else { before }, 0, result);
                PatternCheck { wrong, heard: Some(if wrong == 0 { shape.ranks } else { shape.ranks - 1 }) }
            }
            CollectiveOperation::ReduceScatter | CollectiveOperation::AllReduce => {
                let first =
                    if shape.operation == CollectiveOperation::ReduceScatter { rank * shape.chunk / size } else { 0 };
                let Some(sums) = &self.sums else { return PatternCheck::default() };
                wrong = if exactly {
                    differing(result, &tiled(&sums.exact, first * size, result.len() as u64), size)
                } else {
                    let about = sums.about.iter().cycle().skip((first % PERIOD) as usize);
                    let values = result.chunks_exact(size as usize).map(|bytes| decoded(self.element, bytes));
                    // A NaN is also wrong.
                    let off = |value: f64, sum: f64, bound: f64| (value - sum).abs() > bound || value.is_nan();
                    values.zip(about).filter(|(value, (sum, bound))| off(*value, *sum, *bound)).count() as u64
                };
                PatternCheck { wrong, heard: (wrong == 0).then_some(shape.ranks) }
            }
        }
    }
}

/// Returns `length` bytes of the repeated `period`, starting at byte `first`.
fn tiled(period: &[u8], first: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize);
    let mut at = (first % period.len().max(1) as u64) as usize;
    while bytes.len() < length as usize {
        let more = (period.len() - at).min(length as usize - bytes.len());
        bytes.extend_from_slice(&period[at..at + more]);
        at = 0;
    }
    bytes
}

/// Returns the number of elements of `size` bytes that differ.
fn differing(found: &[u8], expected: &[u8], size: u64) -> u64 {
    ginlab::progress::record();
    if found == expected {
        return 0;
    }
    let size = size as usize;
    found.chunks_exact(size).zip(expected.chunks_exact(size)).filter(|(found, expected)| found != expected).count()
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(operation: CollectiveOperation, element: Element) -> Pattern {
        Pattern::new(element, Shape::new(operation, 3, 300_000, element.bytes()), 3, 1, 7)
    }

    #[test]
    fn single_wrong_element_is_detected_in_every_operation() {
        for element in [Element::F32, Element::Bf16, Element::F16] {
            for operation in [
                CollectiveOperation::AllToAll,
                CollectiveOperation::AllGather,
                CollectiveOperation::Broadcast,
                CollectiveOperation::SendRecv,
            ] {
                let pattern = pattern(operation, element);
                let shape = pattern.shape;
                let mut result = match operation {
                    CollectiveOperation::AllToAll => {
                        (0..3).flat_map(|rank| pattern.input(rank)[2 * shape.chunk as usize..].to_vec()).collect()
                    }
                    CollectiveOperation::AllGather => (0..3).flat_map(|rank| pattern.input(rank)).collect::<Vec<u8>>(),
                    _ => pattern.input(1),
                };
                assert_eq!(
                    pattern.check(2, &result, true),
                    PatternCheck { wrong: 0, heard: Some(3) },
                    "{operation:?} {element:?}"
                );
                result[5] ^= 0x40;
                assert_eq!(
                    pattern.check(2, &result, true),
                    PatternCheck { wrong: 1, heard: Some(2) },
                    "{operation:?} {element:?}"
                );
            }
        }
    }

    #[test]
    fn sums_match_order_or_error_bound() {
        for element in [Element::F32, Element::Bf16, Element::F16] {
            let pattern = pattern(CollectiveOperation::AllReduce, element);
            let inputs: Vec<Vec<f32>> = (0..3).map(|rank| numbers(element, rank, 7, PERIOD)).collect();
            let sum = |order: [usize; 3]| {
                let sum = |at: usize| inputs[order[0]][at] + inputs[order[1]][at] + inputs[order[2]][at];
                tiled(&encoded(element, &(0..PERIOD as usize).map(sum).collect::<Vec<_>>()), 0, pattern.shape.bytes)
            };
            assert_eq!(pattern.check(0, &sum([0, 1, 2]), true).wrong, 0, "{element:?}");
            let other = sum([2, 1, 0]);
            assert_eq!(pattern.check(0, &other, false), PatternCheck { wrong: 0, heard: Some(3) }, "{element:?}");
            if element == Element::F32 {
                assert!(pattern.check(0, &other, true).wrong > 0, "another order shows");
            }
            // Computes the sum without one of the ranks.
            let missing: Vec<f32> = (0..PERIOD as usize).map(|at| inputs[0][at] + inputs[1][at]).collect();
            let missing = tiled(&encoded(element, &missing), 0, pattern.shape.bytes);
            let found = pattern.check(0, &missing, false);
            assert!(found.wrong > 0 && found.heard.is_none(), "{element:?}: {found:?}");
        }
    }
}
