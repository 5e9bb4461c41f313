//! Software NICs, described on one line: `name=p5 cards=4 seed=7 line_rate_gbps=100 ...`. Each word is a key with a
//! value, or only a key. Blanks, commas and semicolons separate words.

use crate::nic::{NicTimings, draw};
use std::fmt;

/// Maximum number of engine threads of a process.
pub const MOST_THREADS: usize = 16;

/// Default number of NICs of a machine.
const CARDS: usize = 4;
/// Default maximum of 64-byte requests per doorbell; no NIC's value is published.
const MAX_BATCH: u32 = 64;
/// Size in bytes of a packet of a write, for [`MachineSpec::cut`].
const PACKET: u64 = 8192;
/// PCI buses of the NICs of a p5.48xlarge, four below each switch.
const BUSES: [u8; 32] = [
    0x4f, 0x50, 0x51, 0x52, 0x60, 0x61, 0x62, 0x63, 0x71, 0x72, 0x73, 0x74, 0x82, 0x83, 0x84, 0x85, 0x93, 0x94, 0x95,
    0x96, 0xa4, 0xa5, 0xa6, 0xa7, 0xb5, 0xb6, 0xb7, 0xb8, 0xc6, 0xc7, 0xc8, 0xc9,
];

/// An injected fault. The number is that of the work request (or registration) of the process, counted from 1 over all
/// its NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicFault {
    /// The bytes of this request arrive, but it never completes.
    Lose(u64),
    /// The last byte of this request does not arrive, and its completion reports success.
    Short(u64),
    /// This request moves no bytes and completes with this EFA status.
    Fail(u64, u32),
    /// The send queue of this request processes neither it nor any later request.
    Dead(u64),
    /// All queues are full from this request on.
    Full(u64),
    /// This request finds its queue pair in error, as after misuse. This fault requires queues that the program writes
    /// directly.
    Break(u64),
    /// This memory registration and all later ones are refused, as if they exceeded `ulimit -l`.
    Refuse(u64),
    /// The NIC is one lap ahead of the reader at this completion. This fault requires completion queues that the
    /// program reads directly.
    Overrun(u64),
}

/// The NICs of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpec {
    /// Name in results: that of a profile, or `fast`.
    pub name: String,
    /// Timing figures; `None` for a NIC that is as fast as this machine permits.
    pub figures: Option<NicTimings>,
    /// Number of NICs.
    pub cards: usize,
    /// Seed of latencies and order.
    pub seed: u64,
    /// Maximum number of further polls after which a request arrives. The actual number is drawn from the seed, so
    /// later requests can overtake earlier ones.
    pub reorder: u64,
    /// Whether the NICs support RDMA writes; those of a p4d do not.
    pub writes: bool,
    /// Whether the NICs support completion counters in memory that a GPU can map; those of a p4d and a p5 do not.
    pub counters: bool,
    /// Whether reads and writes copy their bytes.
    pub moves: bool,
    /// Maximum depth of a send queue.
    pub depth: u32,
    /// Minimum depth of a send queue, like `min_sq_wr` in libefa. Smaller depths are rounded up.
    pub min_depth: u32,
    /// Maximum depth of a receive queue.
    pub receives: u32,
    /// Maximum number of requests written before the doorbell is rung, in 64-byte requests.
    pub max_batch: u32,
    /// Number of engine threads of a process, for queues that programs write directly.
    pub threads: usize,
    /// Initial value of completion counters.
    pub counted: u64,
    /// Factor by which the first NIC is slower than its figures.
    pub slow: f64,
    /// Whether the NICs trace requests on stderr.
    pub trace: bool,
    /// Whether a poll waits while a session of the queue pair is open. In libefa, the session holds the lock that the
    /// poll takes.
    pub session_lock: bool,
    /// Injected faults.
    pub faults: Vec<NicFault>,
    /// ID of the machine, to simulate a machine other than this one.
    pub host: Option<u64>,
    /// PCI address of all NICs, that of a device of this machine. `None` for the addresses of a p5.48xlarge.
    pub pci: Option<String>,
}

impl Default for MachineSpec {
    fn default() -> MachineSpec {
        MachineSpec {
            name: "fast".into(),
            figures: None,
            cards: CARDS,
            seed: 1,
            reorder: 3,
            writes: true,
            counters: true,
            moves: true,
            depth: 4096,
            min_depth: 1,
            receives: 32768,
            max_batch: MAX_BATCH,
            threads: 1,
            counted: 0,
            slow: 1.0,
            trace: false,
            session_lock: false,
            faults: Vec::new(),
            host: None,
            pci: None,
        }
    }
}

/// The documented keys, for messages.
const KEYS: &str = "cards=1..32, seed=N, reorder=N, depth=N, min-depth=N, receives=N, host=N, pci=0000:00:00.0, no-write, no-counters, unmoved, trace, session-lock, \
                    slow=FACTOR, lose=N, short=N, fail=N or fail=N/STATUS, dead=N, full=N, refuse=N, break=N, overrun=N, max-batch=N, counted=N, \
                    threads=1..16";

/// EFA status of a key or range that the peer refuses.
const BAD_ADDRESS: u32 = 7;

impl MachineSpec {
    /// Parses a description.
    ///
    /// # Errors
    /// Returns the invalid word, and the permitted ones.
    pub fn parse(text: &str) -> Result<MachineSpec, String> {
        let mut spec = MachineSpec::default();
        spec.add(text)?;
        Ok(spec)
    }

    /// Parses further words into this description.
    ///
    /// # Errors
    /// Returns the same errors as [`MachineSpec::parse`].
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        for word in text.split([' ', ',', ';', '\n']).filter(|word| !word.is_empty()) {
            self.word(word).ok_or_else(|| format!("invalid NIC option {word:?}: expected one of {KEYS}"))?;
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
            "min-depth" => self.min_depth = count().filter(|depth| *depth <= 32768)? as u32,
            "receives" => self.receives = count().filter(|depth| *depth <= 32768)? as u32,
            "host" => self.host = Some(number()?),
            "pci" => self.pci = Some(is_pci_address(value).then(|| value.to_owned())?),
            "slow" => self.slow = value.parse().ok().filter(|factor: &f64| (1.0..=1e6).contains(factor))?,
            "no-write" if value.is_empty() => self.writes = false,
            "no-counters" if value.is_empty() => self.counters = false,
            "unmoved" if value.is_empty() => self.moves = false,
            "trace" if value.is_empty() => self.trace = true,
            "session-lock" if value.is_empty() => self.session_lock = true,
            "lose" => self.faults.push(NicFault::Lose(count()?)),
            "short" => self.faults.push(NicFault::Short(count()?)),
            "dead" => self.faults.push(NicFault::Dead(count()?)),
            "refuse" => self.faults.push(NicFault::Refuse(count()?)),
            "break" => self.faults.push(NicFault::Break(count()?)),
            "overrun" => self.faults.push(NicFault::Overrun(count()?)),
            "max-batch" => self.max_batch = count().filter(|most| *most <= 32767)? as u32,
            "threads" => self.threads = count().filter(|count| *count <= MOST_THREADS as u64)? as usize,
            "counted" => self.counted = number().filter(|begun| *begun < 1 << 31)?,
            "full" => self.faults.push(NicFault::Full(count()?)),
            "fail" => {
                let (at, status) = value.split_once('/').unwrap_or((value, ""));
                let status = if status.is_empty() { BAD_ADDRESS } else { status.parse().ok()? };
                let at = at.parse().ok().filter(|at| *at > 0)?;
                self.faults.push(NicFault::Fail(at, (matches!(status, 1..=15 | 18)).then_some(status)?));
            }
            _ => *self.figure(key)? = value.parse().ok().filter(|figure: &f64| figure.is_finite() && *figure >= 0.0)?,
        }
        Some(())
    }

    /// Returns the figure of this name. The first call allocates all figures.
    fn figure(&mut self, name: &str) -> Option<&mut f64> {
        let mut unknown = NicTimings::default();
        let index = fields(&mut unknown).iter().position(|(known, _)| *known == name)?;
        Some(fields(self.figures.get_or_insert_default()).into_iter().nth(index)?.1)
    }

    /// Returns the PCI address of a NIC.
    #[must_use]
    pub fn address(&self, card: usize) -> String {
        self.pci.clone().unwrap_or_else(|| format!("0000:{:02x}:00.0", Self::bus(card)))
    }

    /// Returns the PCI bus of a NIC of a p5.48xlarge: its address is domain 0, this bus, device 0, function 0.
    #[must_use]
    pub fn bus(card: usize) -> u8 {
        BUSES[card % BUSES.len()]
    }

    /// Returns the number of further polls after which the `n`-th request arrives.
    #[must_use]
    pub fn delay(&self, n: u64) -> u64 {
        if self.reorder == 0 { 0 } else { draw(self.seed, n) % (self.reorder + 1) }
    }

    /// Returns the number of bytes at the start of a write that arrive after the others, a multiple of the packet size.
    /// Returns 0 if requests keep their order or there is only one packet.
    #[must_use]
    pub fn cut(&self, n: u64, bytes: u64) -> u64 {
        let packets = bytes.div_ceil(PACKET);
        if self.reorder == 0 || packets < 2 { 0 } else { (1 + draw(self.seed, n) % (packets - 1)) * PACKET }
    }
}

/// Returns whether `text` has the form of a PCI address in sysfs: `0000:4f:00.0`.
fn is_pci_address(text: &str) -> bool {
    let form = "hhhh:hh:hh.h";
    text.len() == form.len()
        && text.bytes().zip(form.bytes()).all(|(byte, kind)| match kind {
            b'h' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            separator => byte == separator,
        })
}

fn fields(figures: &mut NicTimings) -> [(&'static str, &mut f64); 9] {
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

impl fmt::Display for MachineSpec {
    /// Writes all values in the form that [`MachineSpec::parse`] accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={} cards={} seed={} reorder={}", self.name, self.cards, self.seed, self.reorder)?;
        write!(f, " depth={} receives={} slow={}", self.depth, self.receives, self.slow)?;
        let said = [
            (!self.writes, "no-write"),
            (!self.counters, "no-counters"),
            (!self.moves, "unmoved"),
            (self.trace, "trace"),
            (self.session_lock, "session-lock"),
        ];
        for (said, word) in said {
            if said {
                write!(f, " {word}")?;
            }
        }
        if self.min_depth != 1 {
            write!(f, " min-depth={}", self.min_depth)?;
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
        if let Some(pci) = &self.pci {
            write!(f, " pci={pci}")?;
        }
        for fault in &self.faults {
            match fault {
                NicFault::Lose(at) => write!(f, " lose={at}")?,
                NicFault::Short(at) => write!(f, " short={at}")?,
                NicFault::Fail(at, status) => write!(f, " fail={at}/{status}")?,
                NicFault::Dead(at) => write!(f, " dead={at}")?,
                NicFault::Full(at) => write!(f, " full={at}")?,
                NicFault::Refuse(at) => write!(f, " refuse={at}")?,
                NicFault::Break(at) => write!(f, " break={at}")?,
                NicFault::Overrun(at) => write!(f, " overrun={at}")?,
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
    fn formatted_spec_parses_back() {
        let figures =
            NicTimings { line_rate_gbps: 100.0, peak_share: 0.974, one_way_us: 10.0, ..NicTimings::default() };
        let faults = vec![
            NicFault::Lose(3),
            NicFault::Short(5),
            NicFault::Fail(4, 12),
            NicFault::Dead(9),
            NicFault::Full(70),
            NicFault::Break(3),
            NicFault::Overrun(5),
        ];
        let all = MachineSpec {
            name: "p5".into(),
            figures: Some(figures),
            cards: 32,
            seed: 7,
            reorder: 0,
            writes: false,
            counters: false,
            moves: false,
            depth: 16,
            min_depth: 8,
            receives: 64,
            max_batch: 8,
            threads: 4,
            counted: (1 << 31) - 1,
            slow: 2.5,
            trace: true,
            session_lock: true,
            faults,
            host: Some(3),
            pci: Some("0000:af:1f.7".into()),
        };
        for spec in [MachineSpec::default(), all] {
            assert_eq!(MachineSpec::parse(&spec.to_string()).as_ref(), Ok(&spec), "{spec}");
        }
    }

    #[test]
    fn long_write_is_cut_between_packets() {
        let (spec, in_order) = (
            MachineSpec { reorder: 1, ..MachineSpec::default() },
            MachineSpec { reorder: 0, ..MachineSpec::default() },
        );
        assert_eq!([0, 1, PACKET].map(|bytes| spec.cut(1, bytes)), [0; 3]);
        for bytes in [PACKET + 1, 2 * PACKET, 1 << 20, (1 << 30) + 7] {
            let cuts: std::collections::BTreeSet<u64> = (0..64).map(|n| spec.cut(n, bytes)).collect();
            assert!(cuts.iter().all(|cut| cut.is_multiple_of(PACKET) && (1..bytes).contains(cut)), "{cuts:?}");
            assert!(cuts.len() > 1 || bytes <= 2 * PACKET, "{cuts:?}");
            assert_eq!(in_order.cut(1, bytes), 0);
        }
    }

    #[test]
    fn invalid_words_are_rejected_by_name() {
        for word in [
            "cards=0",
            "cards=33",
            "seed=x",
            "reorder=-1",
            "depth=0",
            "min-depth=0",
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
            "pci=4f:00.0",
            "pci=0000:4F:00.0",
            "peak_share=-1",
        ] {
            let error = MachineSpec::parse(&format!("seed=1,{word}")).map(|spec| spec.to_string()).unwrap_or_default();
            assert_eq!(error, "", "{word} was taken");
        }
        let text = MachineSpec::parse("colour=red").map_or_else(|error| error.to_string(), |spec| spec.to_string());
        assert!(text.starts_with("invalid NIC option \"colour=red\": expected one of cards=1..32, "), "{text}");
    }

    #[test]
    fn seed_determines_order() {
        let delays = |seed| {
            let spec = MachineSpec { seed, ..MachineSpec::default() };
            (1..=64).map(|n| spec.delay(n)).collect::<Vec<_>>()
        };
        assert_eq!(delays(5), delays(5));
        assert_ne!(delays(5), delays(6));
        assert!((0..=3).all(|polls| delays(5).contains(&polls)));
        assert!((1..=64).all(|n| MachineSpec { reorder: 0, ..MachineSpec::default() }.delay(n) == 0));
    }
}
