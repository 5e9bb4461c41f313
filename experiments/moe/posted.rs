//! What a PE posts in a round, by plan: for rows, and for what bounds them.

use super::plan::{Choice, Count, Problem, Type, Unit};
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

/// What a PE posts to other PEs in a round: over rails, and by mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub rails: Posted,
    pub mapped: Posted,
}

impl Round {
    /// Of PE `me`, with all PEs' choices; `is_mapped` says how another PE is reached.
    pub fn of(
        problem: &Problem,
        (unit, count, kind): (Unit, Count, Type),
        me: u32,
        choices: &[Vec<Choice>],
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
                Count::Signal => way(pe, &|posted| posted.signals += 1),
                Count::Word => way(pe, &|posted| posted.put(8)),
                Count::Immediate if planned.count == 0 => way(pe, &|posted| posted.signals += 1),
                Count::Immediate => {}
            }
        }
        let node = me / problem.local * problem.local;
        let in_node = node..node + problem.local;
        for (from, chosen) in (0..).zip(choices) {
            let here: Vec<_> =
                problem.messages(unit, from, chosen).into_iter().filter(|(_, _, to)| *to == me).collect();
            // An answer for each, or a bare one.
            here.iter().for_each(|_| way(from, &|posted| posted.put(back)));
            if here.is_empty() && hears(from) {
                way(from, &|posted| posted.signals += 1);
            }
            if unit != Unit::Node {
                continue;
            }
            // Handed on to those of this node, or made here for who has handed it on.
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

    /// Every message has one answer, whatever the unit, and over rails a token goes to a node once.
    #[test]
    fn all_pes_together_answer_what_they_send() {
        let problem = Problem { tokens: 30, hidden: 64, experts: 16, topk: 4, pes: 8, local: 4 };
        let router = Router::drawn(5, 16, 0.5);
        let choices: Vec<_> = (0..8).map(|pe| router.choices(&problem, pe, 0)).collect();
        let all = |unit, count| {
            let of = |me| Round::of(&problem, (unit, count, Type::Bf16), me, &choices, |pe| pe / 4 == me / 4);
            (0..8).map(of).collect::<Vec<Round>>()
        };
        let sum = |rounds: &[Round]| rounds.iter().map(|round| round.rails.messages).sum::<u64>();
        let by_unit = [Unit::Expert, Unit::Rank, Unit::Node].map(|unit| sum(&all(unit, Count::Immediate)));
        assert!(by_unit[0] > by_unit[1] && by_unit[1] > by_unit[2], "{by_unit:?}");
        assert!(by_unit.iter().all(|messages| messages % 2 == 0));
        // To the other node at most once for each token, and back.
        assert!(by_unit[2] <= 2 * 8 * 30);
        let signals = |count| all(Unit::Rank, count).iter().map(|round| round.rails.signals).max();
        assert_eq!(signals(Count::Signal), Some(4));
        assert_eq!(signals(Count::Word), Some(0));
        assert_eq!(signals(Count::Immediate), Some(0));
    }
}
