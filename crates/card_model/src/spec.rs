//! Cards in software, described in one line: `name=p5 cards=4 seed=7 line_rate_gbps=100 ...`. A word is a key with a value, or a
//! key alone; blanks, commas and semicolons separate them.

use crate::nic::{Figures, draw};
use std::fmt;

/// Threads that can be the cards of a process.
pub const MOST_THREADS: usize = 16;

/// Cards that a machine has unless told otherwise.
const CARDS: usize = 4;
/// Requests of 64 bytes between two doorbells; no card's figure is published.
const MAX_BATCH: u32 = 64;
/// Bytes of a packet of a write, in the sense of [`Spec::cut`].
const PACKET: u64 = 8192;
/// Where the cards of a p5.48xlarge are on its PCI buses, four below each switch.
const BUSES: [u8; 32] = [
    0x4f, 0x50, 0x51, 0x52, 0x60, 0x61, 0x62, 0x63, 0x71, 0x72, 0x73, 0x74, 0x82, 0x83, 0x84, 0x85, 0x93, 0x94, 0x95,
    0x96, 0xa4, 0xa5, 0xa6, 0xa7, 0xb5, 0xb6, 0xb7, 0xb8, 0xc6, 0xc7, 0xc8, 0xc9,
];

/// What goes wrong, and at which work request of the process (or registration), counted from 1 over all its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bytes of this request arrive, its completion never does.
    Lose(u64),
    /// This request moves nothing and completes with this status of EFA's.
    Fail(u64, u32),
    /// From this request on the card whose it is does nothing any more.
    Dead(u64),
    /// From this request on its queue is full.
    Full(u64),
    /// This request finds its queue pair in error, as one that was misused: of a queue that the program writes itself.
    Break(u64),
    /// From this registration of the process on, counted from 1 over all its cards, memory is refused as what is beyond `ulimit -l`.
    Refuse(u64),
    /// With this completion the card is a lap ahead of who reads: of a completion queue that the program reads itself.
    Overrun(u64),
}

/// The cards of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What they are called in results: a profile's name, or `fast`.
    pub name: String,
    /// How they behave in time; `None`: as fast as this machine is.
    pub figures: Option<Figures>,
    /// How many there are.
    pub cards: usize,
    /// What decides latencies and order.
    pub seed: u64,
    /// A request arrives after up to so many further polls, which the seed draws: later ones overtake earlier ones.
    pub reorder: u64,
    /// Whether they write into a peer's memory themselves; those of a p4d do not.
    pub writes: bool,
    /// Whether they count what they complete, in memory that a device may map; those of a p4d and a p5 do not.
    pub counters: bool,
    /// Whether reads and writes move their bytes.
    pub moves: bool,
    /// Requests that a queue takes.
    pub depth: u32,
    /// Receives that a queue takes.
    pub receives: u32,
    /// Requests that may be written before the doorbell is rung, in requests of 64 bytes.
    pub max_batch: u32,
    /// Threads that are the cards of a process at their queues, where programs write those themselves.
    pub threads: usize,
    /// What completion counters begin with.
    pub counted: u64,
    /// By so much slower than its figures the first card is.
    pub slow: f64,
    /// Whether they say on stderr what they do.
    pub trace: bool,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// The machine they are in, where it is to be another one than this.
    pub host: Option<u64>,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            name: "fast".into(),
            figures: None,
            cards: CARDS,
            seed: 1,
            reorder: 3,
            writes: true,
            counters: true,
            moves: true,
            depth: 4096,
            receives: 32768,
            max_batch: MAX_BATCH,
            threads: 1,
            counted: 0,
            slow: 1.0,
            trace: false,
            faults: Vec::new(),
            host: None,
        }
    }
}

/// The keys that people write, for messages.
const KEYS: &str = "cards=1..32, seed=N, reorder=N, depth=N, receives=N, host=N, no-write, no-counters, unmoved, trace, slow=FACTOR, lose=N, fail=N or \
                    fail=N/STATUS, dead=N, full=N, refuse=N, break=N, overrun=N, max-batch=N, counted=N, \
                    threads=1..16";

/// EFA's status for a key or range that the peer refuses.
const BAD_ADDRESS: u32 = 7;

impl Spec {
    /// Reads a description.
    ///
    /// # Errors
    /// The word that is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let mut spec = Spec::default();
        spec.add(text)?;
        Ok(spec)
    }

    /// Reads further words into it.
    ///
    /// # Errors
    /// As [`Spec::parse`].
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        for word in text.split([' ', ',', ';', '\n']).filter(|word| !word.is_empty()) {
            self.word(word).ok_or_else(|| format!("{word:?} says nothing about cards; there are {KEYS}"))?;
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u64>().ok();
        let count = || number().filter(|count| *count > 0);
        match key {
            "name" => self.name = (!value.is_empty()).then(|| value.to_owned())?,
            "cards" => self.cards = count().filter(|count| *count <= BUSES.len() as u64)? as usize,
            "seed" => self.seed = number()?,
            "reorder" => self.reorder = number().filter(|polls| *polls <= 1000)?,
            "depth" => self.depth = count().filter(|depth| *depth <= 32768)? as u32,
            "receives" => self.receives = count().filter(|depth| *depth <= 32768)? as u32,
            "host" => self.host = Some(number()?),
            "slow" => self.slow = value.parse().ok().filter(|factor: &f64| (1.0..=1e6).contains(factor))?,
            "no-write" if value.is_empty() => self.writes = false,
            "no-counters" if value.is_empty() => self.counters = false,
            "unmoved" if value.is_empty() => self.moves = false,
            "trace" if value.is_empty() => self.trace = true,
            "lose" => self.faults.push(Fault::Lose(count()?)),
            "dead" => self.faults.push(Fault::Dead(count()?)),
            "refuse" => self.faults.push(Fault::Refuse(count()?)),
            "break" => self.faults.push(Fault::Break(count()?)),
            "overrun" => self.faults.push(Fault::Overrun(count()?)),
            "max-batch" => self.max_batch = count().filter(|most| *most <= 32767)? as u32,
            "threads" => self.threads = count().filter(|count| *count <= MOST_THREADS as u64)? as usize,
            "counted" => self.counted = number().filter(|begun| *begun < 1 << 31)?,
            "full" => self.faults.push(Fault::Full(count()?)),
            "fail" => {
                let (at, status) = value.split_once('/').unwrap_or((value, ""));
                let status = if status.is_empty() { BAD_ADDRESS } else { status.parse().ok()? };
                let at = at.parse().ok().filter(|at| *at > 0)?;
                self.faults.push(Fault::Fail(at, (matches!(status, 1..=15 | 18)).then_some(status)?));
            }
            _ => *self.figure(key)? = value.parse().ok().filter(|figure: &f64| figure.is_finite() && *figure >= 0.0)?,
        }
        Some(())
    }

    /// The figure of this name. The first one that is asked for makes room for all.
    fn figure(&mut self, name: &str) -> Option<&mut f64> {
        let mut unknown = Figures::default();
        let index = fields(&mut unknown).iter().position(|(known, _)| *known == name)?;
        Some(fields(self.figures.get_or_insert_default()).into_iter().nth(index)?.1)
    }

    /// Where a card is: PCI domain 0, this bus, device 0, function 0.
    #[must_use]
    pub fn bus(card: usize) -> u8 {
        BUSES[card % BUSES.len()]
    }

    /// After how many further polls the n-th request arrives.
    #[must_use]
    pub fn delay(&self, n: u64) -> u64 {
        if self.reorder == 0 { 0 } else { draw(self.seed, n) % (self.reorder + 1) }
    }

    /// How many of a write's first bytes come behind its others, whole packets of it: 0 where requests keep their order, or there is one packet.
    #[must_use]
    pub fn cut(&self, n: u64, bytes: u64) -> u64 {
        let packets = bytes.div_ceil(PACKET);
        if self.reorder == 0 || packets < 2 { 0 } else { (1 + draw(self.seed, n) % (packets - 1)) * PACKET }
    }
}

fn fields(figures: &mut Figures) -> [(&'static str, &mut f64); 9] {
    [
        ("line_rate_gbps", &mut figures.line_rate_gbps),
        ("peak_share", &mut figures.peak_share),
        ("rate_per_rail_mops", &mut figures.rate_per_rail_mops),
        ("one_way_us", &mut figures.one_way_us),
        ("one_way_spread_us", &mut figures.one_way_spread_us),
        ("mtu_bytes", &mut figures.mtu_bytes),
        ("start_up_share", &mut figures.start_up_share),
        ("start_up_most_us", &mut figures.start_up_most_us),
        ("queue_depth", &mut figures.queue_depth),
    ]
}

impl fmt::Display for Spec {
    /// All of it, as [`Spec::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={} cards={} seed={} reorder={}", self.name, self.cards, self.seed, self.reorder)?;
        write!(f, " depth={} receives={} slow={}", self.depth, self.receives, self.slow)?;
        let said = [
            (!self.writes, "no-write"),
            (!self.counters, "no-counters"),
            (!self.moves, "unmoved"),
            (self.trace, "trace"),
        ];
        for (said, word) in said {
            if said {
                write!(f, " {word}")?;
            }
        }
        if self.max_batch != MAX_BATCH {
            write!(f, " max-batch={}", self.max_batch)?;
        }
        if self.threads != 1 {
            write!(f, " threads={}", self.threads)?;
        }
        if self.counted != 0 {
            write!(f, " counted={}", self.counted)?;
        }
        if let Some(host) = self.host {
            write!(f, " host={host}")?;
        }
        for fault in &self.faults {
            match fault {
                Fault::Lose(at) => write!(f, " lose={at}")?,
                Fault::Fail(at, status) => write!(f, " fail={at}/{status}")?,
                Fault::Dead(at) => write!(f, " dead={at}")?,
                Fault::Full(at) => write!(f, " full={at}")?,
                Fault::Refuse(at) => write!(f, " refuse={at}")?,
                Fault::Break(at) => write!(f, " break={at}")?,
                Fault::Overrun(at) => write!(f, " overrun={at}")?,
            }
        }
        if let Some(mut figures) = self.figures {
            for (name, value) in fields(&mut figures) {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let figures = Figures { line_rate_gbps: 100.0, peak_share: 0.974, one_way_us: 10.0, ..Figures::default() };
        let faults = vec![
            Fault::Lose(3),
            Fault::Fail(4, 12),
            Fault::Dead(9),
            Fault::Full(70),
            Fault::Break(3),
            Fault::Overrun(5),
        ];
        let all = Spec {
            name: "p5".into(),
            figures: Some(figures),
            cards: 32,
            seed: 7,
            reorder: 0,
            writes: false,
            counters: false,
            moves: false,
            depth: 16,
            receives: 64,
            max_batch: 8,
            threads: 4,
            counted: (1 << 31) - 1,
            slow: 2.5,
            trace: true,
            faults,
            host: Some(3),
        };
        for spec in [Spec::default(), all] {
            assert_eq!(Spec::parse(&spec.to_string()).as_ref(), Ok(&spec), "{spec}");
        }
    }

    #[test]
    fn a_write_of_several_packets_is_cut_between_two() {
        let (spec, in_order) = (Spec { reorder: 1, ..Spec::default() }, Spec { reorder: 0, ..Spec::default() });
        assert_eq!([0, 1, PACKET].map(|bytes| spec.cut(1, bytes)), [0; 3]);
        for bytes in [PACKET + 1, 2 * PACKET, 1 << 20, (1 << 30) + 7] {
            let cuts: std::collections::BTreeSet<u64> = (0..64).map(|n| spec.cut(n, bytes)).collect();
            assert!(cuts.iter().all(|cut| cut.is_multiple_of(PACKET) && (1..bytes).contains(cut)), "{cuts:?}");
            assert!(cuts.len() > 1 || bytes <= 2 * PACKET, "{cuts:?}");
            assert_eq!(in_order.cut(1, bytes), 0);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for word in [
            "cards=0",
            "cards=33",
            "seed=x",
            "reorder=-1",
            "depth=0",
            "slow=0.5",
            "slow=nan",
            "lose=0",
            "fail=3/0",
            "fail=3/16",
            "break",
            "max-batch=0",
            "threads=17",
            "counted=2147483648",
            "fail",
            "unmoved=1",
            "line_rate_gbps=inf",
            "colour=red",
            "name=",
            "peak_share=-1",
        ] {
            let error = Spec::parse(&format!("seed=1,{word}")).map(|spec| spec.to_string()).unwrap_or_default();
            assert_eq!(error, "", "{word} was taken");
        }
        let text = Spec::parse("colour=red").map_or_else(|error| error.to_string(), |spec| spec.to_string());
        assert!(text.starts_with("\"colour=red\" says nothing about cards; there are cards=1..32, "), "{text}");
    }

    #[test]
    fn the_seed_decides_the_order() {
        let delays = |seed| {
            let spec = Spec { seed, ..Spec::default() };
            (1..=64).map(|n| spec.delay(n)).collect::<Vec<_>>()
        };
        assert_eq!(delays(5), delays(5));
        assert_ne!(delays(5), delays(6));
        assert!((0..=3).all(|polls| delays(5).contains(&polls)));
        assert!((1..=64).all(|n| Spec { reorder: 0, ..Spec::default() }.delay(n) == 0));
    }
}
