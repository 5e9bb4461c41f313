//! Plan of a round: the router's choices, and the messages that result from them. Repeats the kernel's arithmetic, for
//! rows, verification and the simulation.

use crate::error::Failure;
use crate::values::usage;
use clap::ValueEnum;
use cuda_std::rows::MOST_TERMS;
use kernels::gin::Counts;
use kernels::moe::{NONE, message_words};
use kernels::pattern::{mixed, seed};
use std::path::{Path, PathBuf};

/// Number of tallies of a PE: messages, their counts, answers.
pub const TALLIES: u32 = 3;

/// Unit that is sent as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// A token for each of its experts
    Expert,
    /// A token for each PE that has any of its experts
    Rank,
    /// A token for each node, where a PE forwards it
    Node,
}

/// Method by which a receiver detects that all messages have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalMethod {
    /// A signal with the count plus one
    Signal,
    /// A word in memory
    Word,
    /// The signal of the first message, which completes the sum of a round to a fixed total
    Immediate,
}

/// Element type of tokens on the way to the experts. On the way back they are bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokenType {
    /// e4m3, with a scale per 128 values
    Fp8,
    /// bf16, not converted
    Bf16,
}

/// A choice of the router for a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterChoice {
    /// Number of the expert. Experts are assigned to PEs in order.
    pub expert: u32,
    /// Weight of the expert's result.
    pub weight: f32,
}

/// Messages from a PE to another one in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Number of messages.
    pub count: u32,
    /// Number of the first message: `token * topk + choice`.
    pub first: u32,
}

/// Parameters of the problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeProblem {
    /// Tokens per PE.
    pub tokens: u32,
    /// Elements per token.
    pub hidden: u32,
    /// Experts of all PEs.
    pub experts: u32,
    /// Experts per token.
    pub topk: u32,
    pub pes: u32,
    /// PEs per node.
    pub local: u32,
}

impl MoeProblem {
    /// Rejects parameters that do not match.
    pub fn check(&self) -> Result<(), Failure> {
        let MoeProblem { tokens, hidden, experts, topk, pes, local } = *self;
        if tokens == 0 || !hidden.is_multiple_of(8) || hidden == 0 || hidden > 1 << 16 {
            return Err(usage("--hidden", format!("{hidden} elements: must be a multiple of 8, up to 65536")));
        }
        if experts == 0 || !experts.is_multiple_of(pes) {
            return Err(usage("--experts", format!("{experts}: must be a multiple of the {pes} ranks")));
        }
        if topk == 0 || topk > experts.min(MOST_TERMS) {
            return Err(usage(
                "--topk",
                format!(
                    "{topk}: must be from 1 to {}, because the experts of a token are distinct",
                    experts.min(MOST_TERMS)
                ),
            ));
        }
        if local == 0 || local > MOST_TERMS || !pes.is_multiple_of(local) {
            return Err(usage("--node-size", format!("{local}: must divide the {pes} ranks and be at most 32")));
        }
        Ok(())
    }

    pub fn nodes(&self) -> u32 {
        self.pes / self.local
    }

    /// Returns the bytes of a message.
    pub fn message_bytes(&self, kind: TokenType) -> u64 {
        u64::from(4 * message_words(self.hidden, self.topk, kind == TokenType::Fp8))
    }

    pub fn answer_bytes(&self) -> u64 {
        2 * u64::from(self.hidden)
    }

    /// Returns the bytes of a token for one expert, as counted by DeepEP's low-latency test.
    pub fn counted_bytes(&self, kind: TokenType) -> u64 {
        let hidden = u64::from(self.hidden);
        if kind == TokenType::Fp8 { hidden + hidden / 128 * 4 + 16 } else { 2 * hidden }
    }

    /// Returns the PE of an expert.
    pub fn pe_of(&self, expert: u32) -> u32 {
        expert / (self.experts / self.pes)
    }

    /// Returns the maximum number of messages of a token to one PE.
    pub fn each(&self, unit: Unit) -> u32 {
        if unit == Unit::Expert { self.topk } else { 1 }
    }

    /// Returns the number of PEs that a message can be for.
    pub fn span(&self, unit: Unit) -> u32 {
        if unit == Unit::Node { self.local } else { 1 }
    }

    /// Returns the PE that receives PE `me`'s message for an expert.
    pub fn target(&self, unit: Unit, me: u32, expert: u32) -> u32 {
        let (pe, span) = (self.pe_of(expert), self.span(unit));
        pe / span * span + me % span
    }

    /// Returns the messages of PE `me`: token, choice, and target PE. A message for several choices has the number of
    /// the first one.
    pub fn messages(&self, unit: Unit, me: u32, choices: &[RouterChoice]) -> Vec<(u32, u32, u32)> {
        let mut messages = Vec::new();
        for (token, chosen) in (0..).zip(choices.chunks(self.topk as usize)) {
            let of_token = messages.len();
            for (choice, chosen) in (0..).zip(chosen) {
                let to = self.target(unit, me, chosen.expert);
                let is_new = |messages: &[(u32, u32, u32)]| messages.iter().all(|message| message.2 != to);
                if unit == Unit::Expert || is_new(&messages[of_token..]) {
                    messages.push((token, choice, to));
                }
            }
        }
        messages
    }

    /// Returns the messages to each PE.
    pub fn planned(&self, messages: &[(u32, u32, u32)]) -> Vec<Planned> {
        let mut planned = vec![Planned { count: 0, first: u32::MAX }; self.pes as usize];
        for (token, choice, to) in messages {
            let one = &mut planned[*to as usize];
            one.first = one.first.min(token * self.topk + choice);
            one.count += 1;
        }
        planned
    }

    /// Returns the kernel's tables for PE `me`. The first has, for each choice, its expert, the bits of its weight, the
    /// target PE of its message, and the increment of its signal. The second has the number of messages to each PE.
    pub fn tables(&self, unit: Unit, way: u32, me: u32, choices: &[RouterChoice]) -> (Vec<[u32; 4]>, Vec<u32>) {
        let messages = self.messages(unit, me, choices);
        let (planned, span, most) = (self.planned(&messages), self.span(unit), self.tokens * self.each(unit));
        let mut table: Vec<[u32; 4]> =
            choices.iter().map(|choice| [choice.expert, choice.weight.to_bits(), NONE, 0]).collect();
        for (token, choice, to) in messages {
            let (number, planned) = (token * self.topk + choice, planned[to as usize]);
            let adds = Counts::adds(way, most, planned.count, planned.first == number);
            table[number as usize][2..].copy_from_slice(&[to, adds]);
        }
        let heard = |pe: u32| pe % span == me % span;
        let counts = (0..).zip(&planned).map(|(pe, planned)| if heard(pe) { planned.count } else { NONE });
        (table, counts.collect())
    }
}

/// The router.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    seed: u64,
    /// Cumulative probabilities of the experts, for random choices.
    shares: Vec<f64>,
    /// Lists from a file. Empty for random choices.
    lists: Vec<Vec<u32>>,
}

impl Router {
    /// Creates a router that chooses experts at random. Shares fall as the power `skew` of an expert's rank in an order
    /// derived from the seed. With 0 all are equal.
    pub fn drawn(seed: u64, experts: u32, skew: f64) -> Router {
        let mut order: Vec<u32> = (0..experts).collect();
        order.sort_by_key(|expert| mixed(seed, u64::from(*expert)));
        let mut shares = vec![0.0; experts as usize];
        for (place, expert) in (1..).zip(&order) {
            shares[*expert as usize] = f64::from(place).powf(-skew);
        }
        let mut sum = 0.0;
        for share in &mut shares {
            sum += *share;
            *share = sum;
        }
        Router { seed, shares, lists: Vec::new() }
    }

    /// Reads lists from a file: a token's experts on each line, for the tokens of all PEs in order. The file is
    /// repeated as often as needed.
    pub fn from_file(path: &Path, seed: u64, experts: u32, topk: u32) -> Result<Router, Failure> {
        let refused = |why: String| usage("--routing", format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let mut lists = Vec::new();
        for (line, text) in
            (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty() && !text.starts_with('#'))
        {
            let numbers = text.split([',', ' ', '\t']).filter(|word| !word.is_empty()).map(str::parse);
            let list: Vec<u32> =
                numbers.collect::<Result<_, _>>().map_err(|error| refused(format!("line {line}: {error}")))?;
            let twice = (1..list.len()).any(|at| list[..at].contains(&list[at]));
            if list.len() != topk as usize || twice || list.iter().any(|expert| *expert >= experts) {
                return Err(refused(format!("line {line}: expected {topk} distinct experts below {experts}")));
            }
            lists.push(list);
        }
        if lists.is_empty() {
            Err(refused("no lists".into()))
        } else {
            Ok(Router { lists, ..Router::drawn(seed, 1, 0.0) })
        }
    }

    /// Creates the router that the options specify.
    pub fn of(seed: u64, skew: f64, file: Option<&PathBuf>, experts: u32, topk: u32) -> Result<Router, Failure> {
        if !(0.0..=4.0).contains(&skew) {
            return Err(usage("--skew", format!("{skew}: must be from 0 (equal shares) to 4")));
        }
        file.map_or_else(|| Ok(Router::drawn(seed, experts, skew)), |file| Router::from_file(file, seed, experts, topk))
    }

    /// Returns the choices of PE `pe`'s tokens in a variant of the problem.
    pub fn choices(&self, problem: &MoeProblem, pe: u32, variant: u32) -> Vec<RouterChoice> {
        let mut choices = Vec::with_capacity((problem.tokens * problem.topk) as usize);
        for token in 0..problem.tokens {
            let draw = Draw { seed: mixed(self.seed, seed(pe, variant, token)), drawn: 0 };
            choices.extend(self.of_token(problem, (pe, variant, token), draw));
        }
        choices
    }

    fn of_token(
        &self,
        problem: &MoeProblem,
        (pe, variant, token): (u32, u32, u32),
        mut draw: Draw,
    ) -> Vec<RouterChoice> {
        let mut experts: Vec<u32> = Vec::new();
        if !self.lists.is_empty() {
            let number = (u64::from(variant) * u64::from(problem.pes) + u64::from(pe)) * u64::from(problem.tokens);
            experts.clone_from(&self.lists[((number + u64::from(token)) % self.lists.len() as u64) as usize]);
        }
        let all = self.shares.last().copied().unwrap_or(0.0);
        // Experts with very small shares are drawn rarely. After `TRIES` draws, take the next expert that is not chosen
        // yet.
        const TRIES: u32 = 1000;
        let mut tries = 0;
        while experts.len() < problem.topk as usize {
            let wanted = draw.below_one() * all;
            let mut expert = self.shares.partition_point(|share| *share <= wanted) as u32 % problem.experts;
            tries += 1;
            while tries > TRIES && experts.contains(&expert) {
                expert = (expert + 1) % problem.experts;
            }
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        let weights: Vec<f32> = experts.iter().map(|_| 0.1 + draw.below_one() as f32).collect();
        let sum: f32 = weights.iter().sum();
        experts.into_iter().zip(weights).map(|(expert, weight)| RouterChoice { expert, weight: weight / sum }).collect()
    }
}

/// Random numbers of one token.
struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn below_one(&mut self) -> f64 {
        self.drawn += 1;
        (mixed(self.seed, self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Every token reaches each of its experts exactly once in every unit: its message is sent to the expert's PE,
        /// or to one on the same node that forwards it.
        #[test]
        fn tokens_reach_every_chosen_expert_once(
            tokens in 1u32..20, each in 1u32..5, nodes in 1u32..4, local in 1u32..4, topk in 1u32..9, variant in 0u32..3, from: u64, skew in 0.0..3.0,
        ) {
            let pes = nodes * local;
            let experts = each * pes;
            let topk = topk.min(experts);
            let problem = MoeProblem { tokens, hidden: 64, experts, topk, pes, local };
            prop_assert!(problem.check().is_ok());
            let router = Router::drawn(from, experts, skew);
            for me in 0..pes {
                let choices = router.choices(&problem, me, variant);
                prop_assert_eq!(choices.len() as u32, tokens * topk);
                for unit in [Unit::Expert, Unit::Rank, Unit::Node] {
                    let messages = problem.messages(unit, me, &choices);
                    for token in 0..tokens {
                        let chosen = &choices[(token * topk) as usize..][..topk as usize];
                        let sum: f32 = chosen.iter().map(|choice| choice.weight).sum();
                        prop_assert!((sum - 1.0).abs() < 1e-5);
                        let different: BTreeSet<u32> = chosen.iter().map(|choice| choice.expert).collect();
                        prop_assert_eq!(different.len() as u32, topk);
                        for choice in chosen {
                            let reaches = |(of, number, to): &&(u32, u32, u32)| {
                                let pe = problem.pe_of(choice.expert);
                                *of == token && match unit {
                                    Unit::Expert => chosen[*number as usize].expert == choice.expert && *to == pe,
                                    Unit::Rank => *to == pe,
                                    Unit::Node => to / local == pe / local && to % local == me % local,
                                }
                            };
                            prop_assert_eq!(messages.iter().filter(reaches).count(), 1);
                        }
                    }
                    let planned = problem.planned(&messages);
                    prop_assert_eq!(planned.iter().map(|one| one.count).sum::<u32>() as usize, messages.len());
                    for (pe, one) in (0..).zip(&planned) {
                        let first = messages.iter().find(|message| message.2 == pe).map(|message| message.0 * topk + message.1);
                        prop_assert_eq!(first.unwrap_or(u32::MAX), one.first);
                    }
                }
            }
        }
    }

    #[test]
    fn skewed_router_is_deterministic_per_seed() {
        let problem = MoeProblem { tokens: 500, hidden: 64, experts: 32, topk: 4, pes: 2, local: 2 };
        let busiest = |skew| {
            let mut counts = [0; 32];
            let choices = Router::drawn(3, 32, skew).choices(&problem, 0, 0);
            choices.iter().for_each(|choice| counts[choice.expert as usize] += 1);
            counts.into_iter().max().unwrap_or(0)
        };
        assert!(busiest(0.0) < 100 && busiest(1.0) > 200, "{} {}", busiest(0.0), busiest(1.0));
        let choices = |seed| Router::drawn(seed, 32, 0.5).choices(&problem, 1, 2);
        assert!(choices(1) == choices(1) && choices(1) != choices(2));
    }

    #[test]
    fn routing_file_is_read_in_order_or_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lists");
        let problem = MoeProblem { tokens: 2, hidden: 64, experts: 4, topk: 2, pes: 2, local: 2 };
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Router::from_file(&path, 1, 4, 2)
        };
        let router = read("# token lists\n0 1\n1,2\n3 0\n").expect("good");
        let experts = |pe, variant| -> Vec<u32> {
            router.choices(&problem, pe, variant).iter().map(|choice| choice.expert).collect()
        };
        assert_eq!((experts(0, 0), experts(1, 0)), (vec![0, 1, 1, 2], vec![3, 0, 0, 1]));
        assert_eq!(experts(0, 1), vec![1, 2, 3, 0]);
        for (text, why) in
            [("0 0\n", "line 1"), ("0 1\n0 4\n", "line 2"), ("0\n", "line 1"), ("", "no lists"), ("a b", "line 1")]
        {
            let said = read(text).expect_err(text).text().unwrap_or_default();
            assert!(said.contains(why) && said.contains("--routing"), "{said}");
        }
    }
}
