//! Number of operations that a PE posts in a round according to the plan, for rows and for lower bounds of the time.

use super::plan::{ArrivalMethod, MoeProblem, RouterChoice, TokenType, Unit};
use serde::{Deserialize, Serialize};

/// Puts, signals and bytes to other PEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Posted {
    pub messages: u64,
    pub signals: u64,
    pub bytes: u64,
}

impl Posted {
    fn put(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

/// Operations that a PE posts to other PEs in a round, over rails and over mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub rails: Posted,
    pub mapped: Posted,
}

impl Round {
    /// Returns the mean over rounds, weighted by the number of each.
    pub fn mean(rounds: &[(u64, Round)]) -> Round {
        let all = rounds.iter().map(|(count, _)| count).sum::<u64>().max(1);
        let mean = |of: &dyn Fn(&Round) -> u64| {
            (rounds.iter().map(|(count, round)| count * of(round)).sum::<u64>() + all / 2) / all
        };
        let of = |part: fn(&Round) -> &Posted| Posted {
            messages: mean(&|round| part(round).messages),
            signals: mean(&|round| part(round).signals),
            bytes: mean(&|round| part(round).bytes),
        };
        Round { rails: of(|round| &round.rails), mapped: of(|round| &round.mapped) }
    }

    /// Returns the operations of PE `me`, given all PEs' choices. `is_mapped` returns whether a PE is reached over
    /// mapped memory.
    pub fn of(
        problem: &MoeProblem,
        (unit, count, kind): (Unit, ArrivalMethod, TokenType),
        me: u32,
        choices: &[Vec<RouterChoice>],
        is_mapped: impl Fn(u32) -> bool,
    ) -> Round {
        let mut round = Round::default();
        let mut way = |pe: u32, post: &dyn Fn(&mut Posted)| match pe {
            _ if pe == me => {}
            _ if is_mapped(pe) => post(&mut round.mapped),
            _ => post(&mut round.rails),
        };
        let (sent, back) = (problem.message_bytes(kind), problem.answer_bytes());
        let hears = |pe: u32| unit != Unit::Node || pe % problem.local == me % problem.local;
        let messages = problem.messages(unit, me, &choices[me as usize]);
        messages.iter().for_each(|(_, _, to)| way(*to, &|posted| posted.put(sent)));
        let planned = problem.planned(&messages);
        for (pe, planned) in (0..).zip(&planned).filter(|(pe, _)| hears(*pe)) {
            match count {
                ArrivalMethod::Signal => way(pe, &|posted| posted.signals += 1),
                ArrivalMethod::Word => way(pe, &|posted| posted.put(8)),
                ArrivalMethod::Immediate if planned.count == 0 => way(pe, &|posted| posted.signals += 1),
                ArrivalMethod::Immediate => {}
            }
        }
        let node = me / problem.local * problem.local;
        let in_node = node..node + problem.local;
        for (from, chosen) in (0..).zip(choices) {
            let here: Vec<_> =
                problem.messages(unit, from, chosen).into_iter().filter(|(_, _, to)| *to == me).collect();
            // One answer per message, or an answer without data if there were none.
            here.iter().for_each(|_| way(from, &|posted| posted.put(back)));
            if here.is_empty() && hears(from) {
                way(from, &|posted| posted.signals += 1);
            }
            if unit != Unit::Node {
                continue;
            }
            // Messages forwarded within this node, and partial sums for the PE that forwarded a message.
            let by_rank = problem.messages(Unit::Rank, from, chosen);
            for (_, _, to) in by_rank {
                if hears(from) && in_node.contains(&to) {
                    way(to, &|posted| posted.put(sent));
                }
                if to == me {
                    way(node + from % problem.local, &|posted| posted.put(back));
                }
            }
        }
        round
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Router;
    use super::*;

    #[test]
    fn mean_weighs_rounds_by_their_count() {
        let round =
            |messages, bytes| Round { rails: Posted { messages, signals: 1, bytes }, mapped: Posted::default() };
        let mean = Round::mean(&[(1, round(10, 100)), (3, round(2, 20)), (0, round(1000, 1000))]);
        assert_eq!(mean, round(4, 40));
        assert_eq!(Round::mean(&[]), Round::default());
    }

    /// Every message has one answer in every unit, and a token is sent to a node at most once over rails.
    #[test]
    fn answers_match_sent_messages() {
        let problem = MoeProblem { tokens: 30, hidden: 64, experts: 16, topk: 4, pes: 8, local: 4 };
        let router = Router::drawn(5, 16, 0.5);
        let choices: Vec<_> = (0..8).map(|pe| router.choices(&problem, pe, 0)).collect();
        let all = |unit, count| {
            let of = |me| Round::of(&problem, (unit, count, TokenType::Bf16), me, &choices, |pe| pe / 4 == me / 4);
            (0..8).map(of).collect::<Vec<Round>>()
        };
        let sum = |rounds: &[Round]| rounds.iter().map(|round| round.rails.messages).sum::<u64>();
        let by_unit = [Unit::Expert, Unit::Rank, Unit::Node].map(|unit| sum(&all(unit, ArrivalMethod::Immediate)));
        assert!(by_unit[0] > by_unit[1] && by_unit[1] > by_unit[2], "{by_unit:?}");
        assert!(by_unit.iter().all(|messages| messages % 2 == 0));
        // Each token causes at most one message to the other node, and one answer.
        assert!(by_unit[2] <= 2 * 8 * 30);
        let signals = |count| all(Unit::Rank, count).iter().map(|round| round.rails.signals).max();
        assert_eq!(signals(ArrivalMethod::Signal), Some(4));
        assert_eq!(signals(ArrivalMethod::Word), Some(0));
        assert_eq!(signals(ArrivalMethod::Immediate), Some(0));
    }
}
