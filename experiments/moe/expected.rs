//! Expected results of a round, computed by the CPU: the tokens, their messages, and the returned sums, bit by bit.

use super::plan::{MoeProblem, RouterChoice, TokenType, Unit};
use cuda_std::fp8::{E4M3_MOST, from_e4m3, to_e4m3};
use cuda_std::half::{pack_bf16, unpack_bf16};
use cuda_std::rows::{GROUP, LEAST};
use ginlab::report::each_once;
use itertools::Itertools;
use kernels::moe::{expert_factor, header_words};
use kernels::pattern::{mixed, seed};
use std::collections::BTreeSet;

/// Returns a token's values as bf16, two per word: of both signs, with magnitudes between 2^-7 and 4.
pub fn token(problem: &MoeProblem, pe: u32, variant: u32, token: u32) -> Vec<u32> {
    let seed = seed(pe, variant, token);
    (0..u64::from(problem.hidden / 2)).map(|at| mixed(seed, at) as u32 & 0x83ff_83ff | 0x3c00_3c00).collect()
}

fn unpacked(words: &[u32]) -> Vec<f32> {
    words.iter().flat_map(|word| unpack_bf16(*word)).collect()
}

fn packed(values: &[f32]) -> Vec<u32> {
    values.iter().tuples().map(|(low, high)| pack_bf16([*low, *high])).collect()
}

/// Returns a token as it is sent: codes, and a scale for each group of values.
fn quantised(words: &[u32]) -> (Vec<u8>, Vec<f32>) {
    let values = unpacked(words);
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for group in values.chunks(GROUP as usize) {
        let most = group.iter().fold(LEAST, |most, value| most.max(value.abs()));
        codes.extend(group.iter().map(|value| to_e4m3(value * (E4M3_MOST / most))));
        scales.push(most / E4M3_MOST);
    }
    (codes, scales)
}

/// Returns the bytes of a message.
pub fn message(
    problem: &MoeProblem,
    kind: TokenType,
    choices: &[RouterChoice],
    row: &[u32],
    round: u32,
    token: u32,
) -> Vec<u8> {
    let mut bytes: Vec<u8> = [round, token].into_iter().flat_map(u32::to_le_bytes).collect();
    let words = |choice: &RouterChoice| [choice.expert, choice.weight.to_bits()];
    bytes.extend(choices.iter().flat_map(words).flat_map(u32::to_le_bytes));
    // Padding between header and values, and after the values, is zero.
    bytes.resize(4 * header_words(problem.topk) as usize, 0);
    match kind {
        TokenType::Bf16 => bytes.extend(row.iter().flat_map(|word| word.to_le_bytes())),
        TokenType::Fp8 => {
            let (codes, scales) = quantised(row);
            bytes.extend(codes);
            bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        }
    }
    bytes.resize(problem.message_bytes(kind) as usize, 0);
    bytes
}

/// Returns the values that an expert receives.
fn received(kind: TokenType, words: &[u32]) -> Vec<f32> {
    match kind {
        TokenType::Bf16 => unpacked(words),
        TokenType::Fp8 => {
            let (codes, scales) = quantised(words);
            (0..).zip(codes).map(|(at, code): (usize, u8)| from_e4m3(code) * scales[at / GROUP as usize]).collect()
        }
    }
}

/// Sums weighted rows in order and rounds to bf16.
fn summed(rows: &[(f32, Vec<f32>)]) -> Vec<f32> {
    let length = rows.first().map_or(0, |(_, row)| row.len());
    let sum = |at: usize| rows.iter().fold(0.0, |sum, (weight, row)| sum + weight * row[at]);
    unpacked(&packed(&(0..length).map(sum).collect::<Vec<f32>>()))
}

/// Returns the result that must be returned for a token.
pub fn output(problem: &MoeProblem, unit: Unit, kind: TokenType, choices: &[RouterChoice], words: &[u32]) -> Vec<u32> {
    let values = received(kind, words);
    let made = |expert: u32| {
        let by = expert_factor(expert);
        unpacked(&packed(&values.iter().map(|value| value * by).collect::<Vec<f32>>()))
    };
    let weighted = |choice: &RouterChoice| (choice.weight, made(choice.expert));
    let pes: Vec<u32> = choices.iter().map(|choice| problem.pe_of(choice.expert)).collect();
    // Sum of a PE's experts, in the router's order.
    let part = |pe: u32| {
        let here = choices.iter().zip(&pes).filter(|(_, of)| **of == pe);
        summed(&here.map(|(choice, _)| weighted(choice)).collect::<Vec<_>>())
    };
    let rows: Vec<(f32, Vec<f32>)> = match unit {
        Unit::Expert => choices.iter().map(weighted).collect(),
        Unit::Rank => each_once(pes.iter().copied()).into_iter().map(|pe| (1.0, part(pe))).collect(),
        Unit::Node => {
            let nodes = each_once(pes.iter().map(|pe| pe / problem.local));
            let of_node = |node: u32| {
                let here: BTreeSet<u32> = pes.iter().copied().filter(|pe| pe / problem.local == node).collect();
                summed(&here.into_iter().map(|pe| (1.0, part(pe))).collect::<Vec<_>>())
            };
            nodes.into_iter().map(|node| (1.0, of_node(node))).collect()
        }
    };
    packed(&summed(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: MoeProblem = MoeProblem { tokens: 4, hidden: 136, experts: 8, topk: 3, pes: 4, local: 2 };

    /// Except for rounding, the sum for every unit is the sum of the experts' results multiplied by their weights.
    #[test]
    fn units_differ_only_by_rounding() {
        let choices = [(1, 0.5), (6, 0.2), (0, 0.3)].map(|(expert, weight)| RouterChoice { expert, weight });
        let words = token(&PROBLEM, 1, 0, 2);
        let exact = unpacked(&words);
        for kind in [TokenType::Fp8, TokenType::Bf16] {
            for unit in [Unit::Expert, Unit::Rank, Unit::Node] {
                let sums = unpacked(&output(&PROBLEM, unit, kind, &choices, &words));
                assert_eq!(sums.len(), exact.len());
                for (sum, value) in sums.iter().zip(&exact) {
                    let all: f32 =
                        choices.iter().map(|choice| choice.weight * expert_factor(choice.expert) * value).sum();
                    // e4m3 has 3 fraction bits, and the largest value of a group is below 4.
                    let most = if kind == TokenType::Fp8 { 0.07 * all.abs() + 0.001 } else { 0.02 * all.abs() };
                    assert!((sum - all).abs() <= most, "{kind:?} {unit:?}: {sum} {all}");
                }
            }
        }
    }

    #[test]
    fn message_length_matches_kernel() {
        let choices = [RouterChoice { expert: 1, weight: 0.5 }; 3];
        for kind in [TokenType::Fp8, TokenType::Bf16] {
            let bytes = message(&PROBLEM, kind, &choices, &token(&PROBLEM, 0, 0, 0), 7, 3);
            assert_eq!(bytes.len() as u64, PROBLEM.message_bytes(kind));
        }
        assert_eq!(MoeProblem { hidden: 7168, topk: 8, ..PROBLEM }.message_bytes(TokenType::Fp8), 7168 + 224 + 80);
        assert_eq!(MoeProblem { hidden: 7168, ..PROBLEM }.counted_bytes(TokenType::Fp8), 7408, "as DeepEP has it");
    }
}
