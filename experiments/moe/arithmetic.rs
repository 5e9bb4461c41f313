//! Tests of values that senders and receivers of a round compute independently: the increments of signals, and the
//! positions of messages and answers.

use super::args::MoeConfig;
use super::memory::{objects, way};
use super::plan::{ArrivalMethod, MoeProblem, Router, RouterChoice, TokenType, Unit};
use crate::world::CallScope;
use cuda_std::rows::MOST_TERMS;
use kernels::gin::BY_SUM;
use kernels::moe::NONE;
use proptest::prelude::*;
use std::collections::BTreeSet;

const UNITS: [Unit; 3] = [Unit::Expert, Unit::Rank, Unit::Node];

/// Generates problems of odd sizes, with one or many experts per token, some of which are never chosen, and the choices
/// of all PEs.
fn problems() -> impl Strategy<Value = (MoeProblem, Vec<Vec<RouterChoice>>)> {
    (1u32..12, 1u32..5, 1u32..4, 1u32..4, 1u32..9, any::<u64>(), 0.0..4.0, any::<bool>()).prop_map(
        |(tokens, each, nodes, local, topk, seed, skew, all_alike)| {
            let (pes, experts) = (nodes * local, each * nodes * local);
            let problem = MoeProblem { tokens, hidden: 72, experts, topk: topk.min(experts), pes, local };
            let alike: Vec<RouterChoice> =
                (0..problem.topk).map(|expert| RouterChoice { expert, weight: 1.0 }).collect();
            let router = Router::drawn(seed, experts, skew);
            let of = |pe| if all_alike { alike.repeat(tokens as usize) } else { router.choices(&problem, pe, 0) };
            (problem, (0..pes).map(of).collect())
        },
    )
}

/// Returns the messages in a PE's table: token, choice, target PE.
fn sent(problem: &MoeProblem, table: &[[u32; 4]]) -> Vec<(u32, u32, u32)> {
    let all = (0..).zip(table).map(|(number, entry)| (number / problem.topk, number % problem.topk, entry[2]));
    all.filter(|(.., to)| *to != NONE).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A receiver waits for exactly the sum of the increments, whether it expects a count or a fixed sum.
    #[test]
    fn signals_sum_to_expected_counts((problem, choices) in problems()) {
        for (unit, count) in UNITS.iter().flat_map(|unit| [ArrivalMethod::Signal, ArrivalMethod::Word, ArrivalMethod::Immediate].map(|count| (*unit, count))) {
            let (way, span, most) = (way(count), problem.span(unit), problem.tokens * problem.each(unit));
            for me in 0..problem.pes {
                let (table, counts) = problem.tables(unit, way, me, &choices[me as usize]);
                prop_assert_eq!((table.len(), counts.len()), ((problem.tokens * problem.topk) as usize, problem.pes as usize));
                for pe in 0..problem.pes {
                    let added: Vec<u32> = table.iter().filter(|entry| entry[2] == pe).map(|entry| entry[3]).collect();
                    let (sum, count) = (added.iter().sum::<u32>(), counts[pe as usize]);
                    prop_assert!(added.iter().all(|add| (1..=most).contains(add)));
                    if pe % span != me % span {
                        prop_assert_eq!((count, added.len()), (NONE, 0), "a PE at another position gets no signals");
                        continue;
                    }
                    prop_assert_eq!(count as usize, added.len());
                    prop_assert!(count <= most);
                    // If there are no messages, the announcement adds the whole sum.
                    let announced = if way == BY_SUM && count == 0 { most } else { 0 };
                    prop_assert_eq!(sum + announced, if way == BY_SUM { most } else { count });
                }
            }
        }
    }

    /// Messages of a round have different positions at a PE, answers have different positions at the sender, and all
    /// positions are in the heap. An answer arrives at the position of a choice that the sender sums.
    #[test]
    fn slots_are_disjoint_and_within_heap((problem, choices) in problems()) {
        for unit in UNITS {
            let tuple = MoeConfig { unit, count: ArrivalMethod::Signal, kind: TokenType::Fp8, scope: CallScope::Warp, batch: 1, grid: 1 };
            let [_, landed, received, made, parts, answers, returned] = objects(&problem, &[tuple]);
            let (message, row) = (problem.message_bytes(tuple.kind), problem.answer_bytes());
            let (each, span) = (problem.each(unit), problem.span(unit));
            let places = u64::from(problem.pes * problem.tokens * each);
            prop_assert_eq!((received, made), (places * message, places * row));
            if unit == Unit::Node {
                prop_assert_eq!((landed, answers), (places * message, places * row));
                prop_assert_eq!(parts, places * u64::from(span) * row);
            }
            let (mut landing, mut answered) = (BTreeSet::new(), BTreeSet::new());
            for me in 0..problem.pes {
                let chosen = &choices[me as usize];
                let (table, _) = problem.tables(unit, way(tuple.count), me, chosen);
                for (token, choice, to) in sent(&problem, &table) {
                    let number = (me * problem.tokens + token) * each + choice % each;
                    prop_assert!(u64::from(number) < places && landing.insert((to, number)));
                    // The receiver derives PE and token from the position, and the first of the token's choices that
                    // are for its PE or node.
                    prop_assert_eq!((number / (problem.tokens * each), number / each % problem.tokens), (me, token));
                    let of_token = &chosen[(token * problem.topk) as usize..][..problem.topk as usize];
                    let first = (0..).zip(of_token).find(|(_, one)| problem.pe_of(one.expert) / span == to / span);
                    let back = if each > 1 { number % each } else { first.map_or(0, |(choice, _)| choice) };
                    prop_assert_eq!(back, choice);
                    for parity in 0..2 {
                        let place = (parity * problem.tokens + token) * problem.topk + back;
                        prop_assert!((u64::from(place) + 1) * row <= returned && answered.insert((me, place)));
                    }
                }
            }
        }
    }

    /// A problem is accepted if and only if the number of ranks divides that of the experts, the number of nodes
    /// divides that of the ranks, and there are enough experts for a token.
    #[test]
    fn indivisible_problems_are_rejected(
        tokens in 0u32..3, eights in 0u32..4, odd in 0u32..2, experts in 0u32..40, topk in 0u32..40, pes in 1u32..9, local in 0u32..9,
    ) {
        let problem = MoeProblem { tokens, hidden: 8 * eights + odd, experts, topk, pes, local };
        let wrong = [
            ("--hidden", tokens == 0 || eights == 0 || odd > 0),
            ("--experts", experts == 0 || experts % pes > 0),
            ("--topk", topk == 0 || topk > experts || topk > MOST_TERMS),
            ("--node-size", local == 0 || pes % local > 0),
        ];
        let first = wrong.iter().find(|(_, wrong)| *wrong).map(|(option, _)| *option);
        let said = problem.check().err().map(|failure| failure.text().unwrap_or_default());
        prop_assert_eq!(said.is_some(), first.is_some());
        prop_assert!(first.is_none_or(|option| said.as_deref().is_some_and(|said| said.contains(option))), "{:?} {:?}", said, first);
    }
}
