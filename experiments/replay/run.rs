//! Simulation of the puts of a trace over modelled NICs. Results are deterministic.
//!
//! A put is issued once all its dependencies are satisfied and its computation time has passed. The rank's thread posts
//! it, piece by piece, to the rank's NICs. A NIC sends one piece at a time and receives one at a time. The put raises
//! its signal when its last piece has arrived.

use super::trace::{Before, ReplayTrace};
use ginlab::fabric::model::{Nic, Picoseconds, Profile};
use ginlab::rails::strategy::{Scheduler, Strategy};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Times on the longest chain, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// Computation, and any other time between an arrival and the next put in the recording.
    pub gaps: Picoseconds,
    /// Time in which a thread posts, or is busy with other posts.
    pub posting: Picoseconds,
    /// Time in which the sending NIC is busy with other pieces.
    pub sending: Picoseconds,
    /// The wire transfers the bytes.
    pub wire: Picoseconds,
    /// Latency of the network.
    pub latency: Picoseconds,
    /// Time in which the receiving NIC is busy with other pieces.
    pub receiving: Picoseconds,
}

impl CriticalPath {
    /// Returns the parts with their names, the longest first.
    pub fn parts(&self) -> [(&'static str, Picoseconds); 6] {
        let mut parts = [
            ("computing", self.gaps),
            ("posting", self.posting),
            ("a busy sending card", self.sending),
            ("the wire", self.wire),
            ("latency", self.latency),
            ("a busy receiving card", self.receiving),
        ];
        parts.sort_by_key(|(_, time)| Reverse(*time));
        parts
    }
}

/// The busiest NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busiest {
    /// Rank of the NIC.
    pub rank: usize,
    /// Rail of the NIC.
    pub rail: usize,
    /// Whether the NIC is busy with receiving. Otherwise, it is busy with sending.
    pub receives: bool,
    /// Duration for which the NIC is busy.
    pub busy: Picoseconds,
}

/// Results of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayResult {
    /// Time from the first put to the last arrival.
    pub time: Picoseconds,
    /// Times on the chain that ends with the last arrival.
    pub path: CriticalPath,
    /// Bytes by rail, over all ranks.
    pub rail_bytes: Vec<u64>,
    /// The NIC that is busy longest.
    pub busiest: Busiest,
    /// Number of puts that were never issued, because they depend on something that is not in the trace.
    pub stuck: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Issue(usize),
    /// The first byte of a piece reaches the receiving NIC.
    Reach(usize),
    /// A piece has arrived completely.
    There(usize),
    /// A put is complete at its sender.
    Complete(usize),
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    put: usize,
    /// Receiving rank and its NIC.
    to: (usize, usize),
    bytes: u64,
    issued: Picoseconds,
    posted: Picoseconds,
    begun: Picoseconds,
    reached: Picoseconds,
    taken: Picoseconds,
    there: Picoseconds,
}

#[derive(Clone, Default)]
struct State {
    waits: usize,
    gap: Picoseconds,
    /// Event that satisfied the last dependency: the issue of a put, or the arrival of its last piece.
    cause: Option<Cause>,
    issued: Picoseconds,
    pieces: usize,
    /// Whether the data of a get is on its way back.
    answered: bool,
    last_piece: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Cause {
    Issued(usize),
    Piece(usize),
}

/// NICs and threads of all ranks.
struct Replay<'a> {
    trace: &'a ReplayTrace,
    rails: usize,
    post: Picoseconds,
    nics: Vec<Nic>,
    threads: Vec<Picoseconds>,
    schedulers: Vec<Scheduler>,
    receiving: Vec<Picoseconds>,
    busy: [Vec<Picoseconds>; 2],
    queue: BinaryHeap<Reverse<(Picoseconds, u64, Happening)>>,
    order: u64,
    pieces: Vec<Piece>,
    states: Vec<State>,
    sums: Vec<u64>,
    /// Puts that wait until another put is issued (`issued`), until it is complete (`complete`), or until a signal
    /// reaches a value (`signals`).
    issued: Vec<Vec<usize>>,
    complete: Vec<Vec<usize>>,
    signals: Vec<Vec<(u64, usize)>>,
}

/// Maximum bytes of one write.
const LONGEST: u64 = 1 << 30;

/// Runs the simulation.
pub fn run(trace: &ReplayTrace, profile: &Profile, rails: usize, strategy: Strategy, seed: u64) -> ReplayResult {
    let cards = trace.ranks * rails;
    let puts = trace.puts.len();
    let mut replay = Replay {
        trace,
        rails,
        post: (profile.post_us.value * 1e6).round() as Picoseconds,
        nics: (0..cards as u64).map(|card| Nic::new(profile, seed ^ card << 8)).collect(),
        threads: vec![0; trace.ranks],
        schedulers: vec![Scheduler::new(strategy, rails); trace.ranks],
        receiving: vec![0; cards],
        busy: [vec![0; cards], vec![0; cards]],
        queue: BinaryHeap::new(),
        order: 0,
        pieces: Vec::new(),
        states: vec![State::default(); puts],
        sums: vec![0; trace.signals],
        issued: vec![Vec::new(); puts],
        complete: vec![Vec::new(); puts],
        signals: vec![Vec::new(); trace.signals],
    };
    replay.wait();
    let mut rail_bytes = vec![0; rails];
    let (mut time, mut last) = (0, None);
    while let Some(Reverse((now, _, what))) = replay.queue.pop() {
        match what {
            Happening::Issue(put) => replay.issue(put, now),
            Happening::Reach(piece) => replay.reach(piece, now),
            Happening::There(piece) => {
                (time, last) = (now, Some(piece));
                rail_bytes[replay.pieces[piece].to.1] += replay.pieces[piece].bytes;
                replay.there(piece, now);
            }
            Happening::Complete(put) => {
                let piece = replay.states[put].last_piece;
                for other in std::mem::take(&mut replay.complete[put]) {
                    replay.release(other, now, piece.map(Cause::Piece));
                }
            }
        }
    }
    let mut busiest = Busiest::default();
    for (receives, busy) in [(false, &replay.busy[0]), (true, &replay.busy[1])] {
        for (card, &busy) in busy.iter().enumerate() {
            if busy > busiest.busy {
                busiest = Busiest { rank: card / rails, rail: card % rails, receives, busy };
            }
        }
    }
    let stuck = replay.states.iter().filter(|state| state.waits > 0).count();
    ReplayResult { time, path: replay.path(last), rail_bytes, busiest, stuck }
}

impl Replay<'_> {
    fn push(&mut self, at: Picoseconds, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, what)));
    }

    /// Registers all dependencies, and issues puts without any.
    fn wait(&mut self) {
        for (index, put) in self.trace.puts.iter().enumerate() {
            self.states[index].gap = put.gap * 1000;
            self.states[index].waits = put.after.len();
            for before in &put.after {
                match *before {
                    Before::Issued(other) => self.issued[other].push(index),
                    Before::Complete(other) => self.complete[other].push(index),
                    Before::Signal { signal, value } => self.signals[signal].push((value, index)),
                }
            }
        }
        for index in 0..self.trace.puts.len() {
            if self.states[index].waits == 0 {
                self.push(self.states[index].gap, Happening::Issue(index));
            }
        }
    }

    fn release(&mut self, put: usize, now: Picoseconds, cause: Option<Cause>) {
        let state = &mut self.states[put];
        state.waits -= 1;
        if state.waits == 0 {
            // The dependency satisfied last is on the longest chain.
            state.cause = cause;
            let at = now + state.gap;
            self.push(at, Happening::Issue(put));
        }
    }

    fn issue(&mut self, index: usize, now: Picoseconds) {
        self.states[index].issued = now;
        for other in std::mem::take(&mut self.issued[index]) {
            self.release(other, now, Some(Cause::Issued(index)));
        }
        let put = &self.trace.puts[index];
        let (from, to) = (put.from, put.to);
        // A get starts with a read request without data, which the other rank's NIC answers.
        let bytes = if put.is_get { 0 } else { put.bytes };
        self.send(index, from, to, bytes, now, true);
    }

    /// Sends the pieces of a put, posted by a thread, or the pieces of an answer, which the NIC sends without a thread.
    fn send(&mut self, index: usize, from: usize, to: usize, bytes: u64, now: Picoseconds, by_thread: bool) {
        let mut pieces = Vec::new();
        self.schedulers[from].schedule(bytes, LONGEST, false, |piece| pieces.push((piece.rail, piece.bytes)));
        self.states[index].pieces = pieces.len();
        for (rail, bytes) in pieces {
            let mut piece = Piece {
                put: index,
                to: (to, rail),
                bytes,
                issued: now,
                posted: now,
                begun: now,
                reached: now,
                taken: now,
                there: now,
            };
            let number = self.pieces.len();
            if from == to {
                // The data stays in this rank's memory.
                self.pieces.push(piece);
                self.push(now, Happening::There(number));
                continue;
            }
            if by_thread {
                self.threads[from] = self.threads[from].max(now) + self.post;
                piece.posted = self.threads[from];
            }
            let card = from * self.rails + rail;
            let course = self.nics[card].post(piece.posted, bytes);
            self.busy[0][card] += course.sent - course.begun;
            piece.begun = course.begun;
            piece.reached = course.begun + (course.delivered - course.sent);
            self.pieces.push(piece);
            self.push(piece.reached, Happening::Reach(number));
        }
    }

    fn reach(&mut self, number: usize, now: Picoseconds) {
        let Piece { to: (rank, rail), bytes, .. } = self.pieces[number];
        let card = rank * self.rails + rail;
        let wire = self.nics[card].wire(bytes);
        let taken = self.receiving[card].max(now);
        self.receiving[card] = taken + wire;
        self.busy[1][card] += wire;
        (self.pieces[number].taken, self.pieces[number].there) = (taken, taken + wire);
        self.push(taken + wire, Happening::There(number));
    }

    fn there(&mut self, number: usize, now: Picoseconds) {
        let index = self.pieces[number].put;
        self.states[index].pieces -= 1;
        if self.states[index].pieces > 0 {
            return;
        }
        self.states[index].last_piece = Some(number);
        let put = &self.trace.puts[index];
        if put.is_get && !std::mem::replace(&mut self.states[index].answered, true) {
            return self.send(index, put.to, put.from, put.bytes, now, false);
        }
        if put.is_get || put.from == put.to {
            self.push(now, Happening::Complete(index));
        } else {
            // The acknowledgement takes as long as the data.
            let piece = &self.pieces[number];
            self.push(now + (piece.reached - piece.begun), Happening::Complete(index));
        }
        if let Some((signal, add)) = put.signal {
            self.sums[signal] += add;
            let sum = self.sums[signal];
            let (go, stay) =
                std::mem::take(&mut self.signals[signal]).into_iter().partition(|(value, _)| *value <= sum);
            self.signals[signal] = stay;
            let go: Vec<(u64, usize)> = go;
            for (_, other) in go {
                self.release(other, now, Some(Cause::Piece(number)));
            }
        }
    }

    /// Returns the times on the chain from the last arrival back to the first put.
    fn path(&self, last: Option<usize>) -> CriticalPath {
        let mut path = CriticalPath::default();
        let mut at = last.map(Cause::Piece);
        let mut until = last.map_or(0, |piece| self.pieces[piece].there);
        while let Some(cause) = at {
            let put = match cause {
                Cause::Issued(put) => put,
                Cause::Piece(number) => {
                    let piece = self.pieces[number];
                    // Adds the acknowledgement, if the put waited for it.
                    path.latency += until.saturating_sub(piece.there);
                    path.wire += piece.there - piece.taken;
                    path.receiving += piece.taken - piece.reached;
                    path.latency += piece.reached - piece.begun;
                    path.sending += piece.begun - piece.posted;
                    path.posting += piece.posted - piece.issued;
                    // Adds the latency of a get's request.
                    path.latency += piece.issued.saturating_sub(self.states[piece.put].issued);
                    piece.put
                }
            };
            let state = &self.states[put];
            path.gaps += state.gap;
            until = state.issued - state.gap;
            at = state.cause;
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::Depends;
    use super::super::trace::tests::{pair, parse};
    use super::*;

    fn replayed(text: &str, profile: &str, rails: usize) -> ReplayResult {
        let trace = parse(text, Depends::Paused).expect("a trace");
        run(&trace, &Profile::named(profile).expect("known"), rails, Strategy::Split, 1)
    }

    #[test]
    fn ping_pong_time_sums_latencies_posts_and_gaps() {
        let text = pair(0, 1, 1, 8, 0, 10_000) + &pair(1, 0, 1, 8, 17_000, 27_000);
        let outcome = replayed(&text, "p5", 1);
        let profile = Profile::named("p5").expect("known");
        let (post, way) = (profile.post_us.value, profile.one_way_us.value);
        let time = outcome.time as f64 / 1e6;
        let expected = 7.0 + 2.0 * (post + way);
        assert!((time - expected).abs() < 2.0 * profile.one_way_spread_us.value + 0.1, "{time} and {expected}");
        assert_eq!((outcome.path.gaps, outcome.stuck), (7_000_000, 0));
        let parts: Picoseconds = outcome.path.parts().iter().map(|(_, time)| time).sum();
        assert_eq!(parts, outcome.time, "the chain is all of the time: {:?}", outcome.path);
    }

    #[test]
    fn long_puts_scale_with_rails() {
        let text: String = (0..8).map(|n| pair(0, 1, n + 1, 64 << 20, n, 1_000_000)).collect();
        let (one, four) = (replayed(&text, "p5", 1), replayed(&text, "p5", 4));
        assert_eq!(one.busiest.rank, 0);
        assert_eq!(one.rail_bytes, [8 * (64 << 20)]);
        assert_eq!(four.rail_bytes, [2 * (64 << 20); 4]);
        let ratio = one.time as f64 / four.time as f64;
        assert!((3.8..4.05).contains(&ratio), "{ratio}");
        assert_eq!(replayed(&text, "p5", 4), four, "the same on each run");
    }

    #[test]
    fn two_senders_share_receiving_card() {
        let one = replayed(&pair(0, 2, 1, 64 << 20, 0, 9), "p5", 1).time;
        let both = replayed(&(pair(0, 2, 1, 64 << 20, 0, 9) + &pair(1, 2, 1, 64 << 20, 0, 9)), "p5", 1);
        let ratio = both.time as f64 / one as f64;
        assert!((1.9..2.1).contains(&ratio) && both.busiest.receives, "{ratio} {:?}", both.busiest);
    }

    #[test]
    fn get_takes_round_trip() {
        let put = pair(0, 1, 1, 1 << 20, 0, 10_000);
        let get = put.lines().next().expect("a line").replace("\"put\"", "\"get\"");
        let (put, get) = (replayed(&put, "p5", 1).time, replayed(&get, "p5", 1).time);
        assert!(get > put + 4_000_000, "{get} {put}");
    }
}
