//! Simulation of a mixture of experts' dispatch or combine: the messages of all GPUs over modelled NICs and NVLink.
//! Results are deterministic.
//!
//! All data is available at time 0. A proxy thread posts one write after another, to the GPU's NICs round-robin, split
//! over several NICs if wanted. If several writes are ready at the same time, those to the next GPU are posted first,
//! to prevent all GPUs from sending to the same one. A NIC sends one message at a time and receives one at a time.
//! Within a machine a GPU stores to the others, and receives, at the profile's NVLink rate. With unit `node`, a message
//! is forwarded when it arrives. Partial sums are sent to the GPU that adds them up when they are available.

use crate::moe::plan::{ArrivalMethod, MoeProblem, Router, TokenType, Unit};
use ginlab::fabric::model::{Nic, Picoseconds, Profile};
use std::collections::HashMap;

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct TokenParameters {
    pub problem: MoeProblem,
    pub unit: Unit,
    pub count: ArrivalMethod,
    pub kind: TokenType,
    /// NICs per GPU.
    pub rails: u32,
    /// Posting threads per GPU.
    pub proxies: u32,
    /// Maximum number of messages from a GPU to another one that are sent in one write over rails.
    pub chunk: u32,
    /// Number of NICs over which a write is split.
    pub spread: u32,
    /// One-way time within a machine.
    pub near: Picoseconds,
    pub seed: u64,
}

/// Results of dispatch or combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenExchangeResult {
    /// Time at which the last message has arrived.
    pub time: Picoseconds,
    /// Messages (including counts) and bytes that are sent over rails by the GPU that posts the most.
    pub posted: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// Time from which the message can be sent.
    ready: Picoseconds,
    from: u32,
    to: u32,
    bytes: u64,
    /// GPU and number of the token.
    of: (u32, u32),
}

/// NICs and threads of all GPUs, during dispatch or combine.
struct Wires<'a> {
    setting: &'a TokenParameters,
    nics: Vec<Nic>,
    post: Picoseconds,
    picoseconds_per_byte: f64,
}

/// Simulates dispatch, then combine, each from time 0.
pub fn run(setting: &TokenParameters, profile: &Profile, router: &Router) -> [TokenExchangeResult; 2] {
    let TokenParameters { problem, unit, .. } = setting;
    let (pes, local) = (problem.pes, problem.local);
    let cards = u64::from(pes * setting.rails);
    let wires = |which: u64| Wires {
        setting,
        nics: (0..cards).map(|card| Nic::new(profile, setting.seed ^ which << 40 ^ card << 8)).collect(),
        post: (profile.post_us.value * 1e6).round() as Picoseconds,
        picoseconds_per_byte: 1000.0 / profile.nvlink_gbytes_s.value,
    };
    let (sent, back) = (problem.message_bytes(setting.kind), problem.answer_bytes());
    let (mut dispatch, mut combine) = (Vec::new(), Vec::new());
    // Lists, for unit `node`, the PEs of a node that need a token.
    let mut within: HashMap<(u32, u32, u32), Vec<u32>> = HashMap::new();
    for me in 0..pes {
        let choices = router.choices(problem, me, 0);
        let messages = problem.messages(*unit, me, &choices);
        let counts = (0..pes).filter(|pe| *pe != me && (*unit != Unit::Node || pe % local == me % local));
        if setting.count != ArrivalMethod::Immediate {
            dispatch.extend(counts.map(|to| Message { ready: 0, from: me, to, bytes: 8, of: (me, u32::MAX) }));
        }
        for (token, _, to) in messages {
            dispatch.push(Message { ready: 0, from: me, to, bytes: sent, of: (me, token) });
            combine.push(Message { ready: 0, from: to, to: me, bytes: back, of: (me, token) });
        }
        if *unit == Unit::Node {
            for (token, _, pe) in problem.messages(Unit::Rank, me, &choices) {
                within.entry((me, token, pe / local)).or_default().push(pe);
            }
        }
    }
    let mut wires_out = wires(0);
    let (arrived, mut first) = wires_out.carry(dispatch);
    if *unit == Unit::Node {
        let hand_on = |&(message, at): &(Message, Picoseconds)| {
            let Message { to, of: (me, token), .. } = message;
            let pes = within.get(&(me, token, to / local)).cloned().unwrap_or_default();
            pes.into_iter().map(move |pe| Message { ready: at, from: to, to: pe, bytes: sent, of: (me, token) })
        };
        let (_, inside) = wires_out.carry(arrived.iter().flat_map(hand_on).collect());
        first.time = first.time.max(inside.time);
    }
    let mut wires_back = wires(1);
    if *unit == Unit::Node {
        let parts = combine.iter().flat_map(|message| {
            let Message { from, of: (me, token), .. } = *message;
            let pes = within.get(&(me, token, from / local)).cloned().unwrap_or_default();
            pes.into_iter().map(move |pe| Message { ready: 0, from: pe, to: from, bytes: back, of: (me, token) })
        });
        let mut there: HashMap<(u32, u32, u32), Picoseconds> = HashMap::new();
        for (message, at) in wires_back.carry(parts.collect()).0 {
            let last = there.entry((message.of.0, message.of.1, message.to)).or_default();
            *last = at.max(*last);
        }
        for message in &mut combine {
            message.ready = there.get(&(message.of.0, message.of.1, message.from)).copied().unwrap_or(0);
        }
    }
    let (_, second) = wires_back.carry(combine);
    [first, second]
}

impl Wires<'_> {
    /// Sends messages. Each GPU sends its messages in the order in which they become ready. Returns the arrival time of
    /// each message.
    fn carry(&mut self, mut messages: Vec<Message>) -> (Vec<(Message, Picoseconds)>, TokenExchangeResult) {
        let TokenParameters { problem, rails, proxies, spread, near, .. } = *self.setting;
        let pes = problem.pes as usize;
        messages.sort_by_key(|message| message.ready);
        let mut threads = vec![0; pes * proxies as usize];
        let (mut posted, mut bytes) = (vec![0u64; pes], vec![0u64; pes]);
        let (mut storing, mut taking) = (vec![0; pes], vec![0; pes]);
        let mut there = Vec::with_capacity(messages.len());
        let chunks = self.chunked(messages, &mut |message| {
            let Message { ready, from, to, bytes: length, .. } = message;
            let (from, to) = (from as usize, to as usize);
            let store = if from == to { 0 } else { (length as f64 * self.picoseconds_per_byte) as Picoseconds };
            storing[from] = ready.max(storing[from]) + store;
            taking[to] = (storing[from] + if from == to { 0 } else { near }).max(taking[to] + store);
            there.push((message, taking[to]));
        });
        // Arrivals at NICs: time of the first byte, NIC, index of the write, and length.
        let mut coming: Vec<(Picoseconds, usize, usize, u64)> = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let (from, to) = (chunk[0].from as usize, chunk[0].to as usize);
            let ready = chunk.iter().map(|message| message.ready).max().unwrap_or(0);
            let length: u64 = chunk.iter().map(|message| message.bytes).sum();
            let parts = u64::from(spread.clamp(1, rails)).min(length.max(1));
            for part in 0..parts {
                let length = length * (part + 1) / parts - length * part / parts;
                let number = posted[from];
                let thread = &mut threads[from * proxies as usize + (number % u64::from(proxies)) as usize];
                *thread = ready.max(*thread) + self.post;
                let rail = (number % u64::from(rails)) as usize;
                let course = self.nics[from * rails as usize + rail].post(*thread, length);
                // The first byte arrives one one-way latency after it was sent.
                let at = course.begun + (course.delivered - course.sent);
                coming.push((at, to * rails as usize + rail, index, length));
                posted[from] += 1;
                bytes[from] += length;
            }
        }
        coming.sort_by_key(|(at, card, ..)| (*card, *at));
        let (mut card_before, mut free) = (usize::MAX, 0);
        let mut whole = vec![0; chunks.len()];
        for (at, card, index, length) in coming {
            if card != card_before {
                (card_before, free) = (card, 0);
            }
            free = at.max(free) + self.nics[card].wire(length);
            whole[index] = free.max(whole[index]);
        }
        for (chunk, at) in chunks.into_iter().zip(whole) {
            there.extend(chunk.into_iter().map(|message| (message, at)));
        }
        let time = there.iter().map(|(_, at)| *at).max().unwrap_or(0);
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
        (there, TokenExchangeResult { time, posted: most(&posted), bytes: most(&bytes) })
    }
}

impl Wires<'_> {
    /// Groups messages over rails into writes, ordered by the time at which the last message of each is ready. Passes
    /// the other messages to `inside`.
    fn chunked(&self, messages: Vec<Message>, inside: &mut dyn FnMut(Message)) -> Vec<Vec<Message>> {
        let local = self.setting.problem.local;
        let mut begun: HashMap<(u32, u32), usize> = HashMap::new();
        let mut chunks: Vec<Vec<Message>> = Vec::new();
        for message in messages {
            let pair = (message.from, message.to);
            if pair.0 / local == pair.1 / local {
                inside(message);
                continue;
            }
            match begun.get(&pair) {
                Some(at) if chunks[*at].len() < self.setting.chunk as usize => chunks[*at].push(message),
                _ => {
                    begun.insert(pair, chunks.len());
                    chunks.push(vec![message]);
                }
            }
        }
        let pes = self.setting.problem.pes;
        // Single messages keep the order of their tokens, which is independent of the targets.
        let distance = |chunk: &[Message]| match self.setting.chunk {
            1 => 0,
            _ => (chunk[0].to + pes - chunk[0].from) % pes,
        };
        chunks.sort_by_key(|chunk| (chunk.iter().map(|message| message.ready).max(), distance(chunk)));
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(pes: u32, unit: Unit, count: ArrivalMethod) -> [TokenExchangeResult; 2] {
        let problem = MoeProblem { tokens: 128, hidden: 7168, experts: 256, topk: 8, pes, local: 8 };
        let setting = TokenParameters {
            problem,
            unit,
            count,
            kind: TokenType::Fp8,
            rails: 2,
            proxies: 1,
            chunk: 1,
            spread: 1,
            near: 2_400_000,
            seed: 1,
        };
        run(&setting, &Profile::named("p5en").expect("known"), &Router::drawn(1, 256, 0.0))
    }

    #[test]
    fn cards_and_proxies_respect_their_rates() {
        for unit in [Unit::Expert, Unit::Rank, Unit::Node] {
            for outcome in both(32, unit, ArrivalMethod::Signal) {
                let wire = outcome.bytes as f64 / (2.0 * 25e9 * 0.91) * 1e12;
                assert!(outcome.time as f64 > wire && outcome.time > outcome.posted * 450_000, "{unit:?} {outcome:?}");
            }
            assert_eq!(both(32, unit, ArrivalMethod::Signal), both(32, unit, ArrivalMethod::Signal));
        }
    }

    #[test]
    fn split_writes_use_all_nics() {
        let problem = MoeProblem { tokens: 128, hidden: 7168, experts: 256, topk: 8, pes: 32, local: 8 };
        let time = |spread| {
            let (unit, count, kind) = (Unit::Rank, ArrivalMethod::Immediate, TokenType::Fp8);
            let setting = TokenParameters {
                problem,
                unit,
                count,
                kind,
                rails: 2,
                proxies: 1,
                chunk: 1024,
                spread,
                near: 0,
                seed: 1,
            };
            run(&setting, &Profile::named("p5en").expect("known"), &Router::drawn(1, 256, 0.0))[0]
        };
        let (whole, split) = (time(1), time(2));
        assert_eq!((split.bytes, split.posted), (whole.bytes, 2 * whole.posted));
        assert!(split.time < whole.time, "{whole:?} {split:?}");
    }

    #[test]
    fn token_is_sent_once_per_unit() {
        let [expert, rank, node] =
            [Unit::Expert, Unit::Rank, Unit::Node].map(|unit| both(16, unit, ArrivalMethod::Immediate)[0]);
        // Messages to the other machine: half of 1024 with unit `expert`, to about five of eight ranks with `rank`, one
        // per token with `node`.
        assert!((450..600).contains(&expert.posted), "{expert:?}");
        assert!((350..450).contains(&rank.posted) && rank.posted < expert.posted, "{rank:?}");
        assert!((120..=128).contains(&node.posted), "{node:?}");
        assert!(node.time < rank.time && rank.time < expert.time);
        // A single machine uses no rails.
        assert_eq!(both(8, Unit::Expert, ArrivalMethod::Signal)[0].posted, 0);
        // One count per other rank, of which 8 are on the other machine.
        assert_eq!(both(16, Unit::Rank, ArrivalMethod::Word)[0].posted.abs_diff(rank.posted), 8);
    }
}
