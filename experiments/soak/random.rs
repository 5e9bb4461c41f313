//! Random programs: a command line per seed. A seed yields the same command line in every build of one version.

use crate::random::SeededChoices;

/// Program of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The experiment and its options.
    pub words: Vec<String>,
    /// Whether the program has a fault. It may then fail, but within its own limits and without wrong bytes.
    pub has_fault: bool,
}

/// Number of programs per program with a fault.
const FAULT_EVERY: u64 = 10;
/// Timeout in seconds of a program with a fault, and of one without, which must suffice on a busy machine.
const TIMEOUTS: (&str, &str) = ("2", "30");

const SHMEM: [&str; 14] = [
    "p-latency",
    "put-latency",
    "put-latency-loaded",
    "get-latency",
    "put-bandwidth",
    "put-signal-bandwidth",
    "get-bandwidth",
    "signal-ping-pong",
    "put-signal-ping-pong",
    "message-ping-pong",
    "barrier-all",
    "all-to-all",
    "signal-order",
    "data-order",
];
const COLLECTIVES: [&str; 5] = ["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "broadcast"];
const EXCHANGES: [&str; 5] = ["host-write", "p", "block", "row", "resident"];
const RULES: [&str; 4] = ["count", "own", "drain", "sequence"];
const SCOPES: [&str; 3] = ["thread", "warp", "block"];
const MODES: [&str; 4] = ["quiet", "nbi", "quiet-every=3", "nbi-batch=4"];

/// Returns the program of a seed. Seven of eight programs use the worst-case network model, and the others use modelled
/// NICs.
pub fn draw(seed: u64) -> Drawn {
    let mut random = SeededChoices::new(seed);
    let has_fault = random.from(1, FAULT_EVERY) == 1;
    let cards = if random.from(1, 8) == 1 {
        "model:p5".to_owned()
    } else {
        let (delay, packets, again) = (random.size(9), random.from(1, 16), random.from(0, 30));
        let longest = 512 << random.from(0, 7);
        format!("worst:seed={seed},delay={delay},packets={packets},again={again},longest={longest}")
    };
    let np = random.from(2, 4);
    let rails = random.from(1, 4);
    let strategy = random.one(&["single", "split", "round-robin", "auto"]);
    let network = format!("--np {np} -p {cards} --rails {rails} --strategy {strategy}");
    let (rule, scope, block) = (random.one(&RULES), random.one(&SCOPES), random.from(1, 70));
    let by_rails = format!("-d emulated --path rails {network} --rule {rule}");
    let size = random.size(14);
    let turns = random.from(1, 12);
    // Modelled NICs require a program with a proxy.
    let by_cpu = |network: &str| network.replacen("model:p5", &format!("worst:seed={seed}"), 1);
    let pairs = network.replacen("--np 3", "--np 4", 1);
    let (line, takes_faults) = match random.from(0, 9) {
        0..=2 => {
            let case = random.one(&SHMEM);
            let (grid, size) = (random.from(1, 3), size.next_multiple_of(8).min(4096));
            let sizes =
                if case.ends_with("order") { String::new() } else { format!("-b {size} -e {size} -w 1 --volume 16K") };
            (
                format!(
                    "shmem {by_rails} --scope {scope} --cases {case} --grid {grid} --block {block} -n {turns} -r 1 {sizes}"
                ),
                true,
            )
        }
        3..=5 => {
            let case = random.one(&COLLECTIVES);
            let (launch, place) = (random.one(&["stream", "persistent"]), random.one(&["in-place", "out-of-place"]));
            let (limit, size) = (random.one(&["0", "1K", "64K"]), size.next_multiple_of(48));
            let line = format!("--cases gin-{case} --launch {launch} --place {place} --message-limit {limit}");
            (
                format!(
                    "collective {by_rails} --scope {scope} {line} --block {block} -b {size} -e {size} -n {turns} -w 1 -r 1"
                ),
                true,
            )
        }
        6 => {
            let exchange = random.one(&EXCHANGES);
            let (nx, ny) = (8 * random.from(2, 12), 4 * np * random.from(1, 4));
            (format!("jacobi {by_rails} --exchange {exchange} --nx {nx} --ny {ny} -n {turns} -r 1"), true)
        }
        7 => {
            let (mode, grid, scope) = (random.one(&MODES), random.from(1, 3), random.one(&["block", "thread"]));
            // Batches require scope block.
            let scope = if mode.starts_with("nbi-batch") { "block" } else { scope };
            let line = format!("--mode {mode} --grid {grid} --block {block} --scope {scope} --ring-slots 64");
            (format!("proxy -d emulated {pairs} {line} -b {size} -e {size} -n {turns} -w 1 -r 1 --window 4"), true)
        }
        8 => (format!("write {} -b {size} -e {size} -n {turns} -r 1", by_cpu(&pairs)), false),
        _ => (format!("all2all -d emulated {} -b {size} -e {size} -n {turns}", by_cpu(&network)), false),
    };
    let has_fault = has_fault && takes_faults;
    let mut line = format!("{line} -t {}", if has_fault { TIMEOUTS.0 } else { TIMEOUTS.1 });
    if has_fault {
        let fault = random.one(&["proxy-stop", "proxy-vanish", "rails-silent"]);
        line.push_str(&format!(" --fault {fault}={}", random.from(1, 60)));
    }
    Drawn { words: line.split_whitespace().map(str::to_owned).collect(), has_fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_deterministic_and_cover_all_programs() {
        let drawn: Vec<Drawn> = (0..2000).map(draw).collect();
        assert_eq!(drawn, (0..2000).map(draw).collect::<Vec<_>>());
        let has = |word: &str| drawn.iter().filter(|drawn| drawn.words.iter().any(|own| own.contains(word))).count();
        for word in
            ["shmem", "collective", "jacobi", "proxy", "write", "all2all", "model:p5", "worst:seed=", "resident"]
        {
            assert!(has(word) > 20, "{word}: {}", has(word));
        }
        let faults = drawn.iter().filter(|drawn| drawn.has_fault).count();
        assert!((100..300).contains(&faults) && faults == has("--fault"), "{faults}");
        let by_cpu = |drawn: &&Drawn| ["write", "all2all"].contains(&&*drawn.words[0]);
        assert!(drawn.iter().filter(by_cpu).all(|drawn| !drawn.words.contains(&"model:p5".into())));
        // These programs pair their ranks.
        assert!(drawn.iter().all(|drawn| !["proxy", "write"].contains(&&*drawn.words[0])
            || !drawn.words.contains(&"3".into())
            || !drawn.words.join(" ").contains("--np 3")));
    }

    #[test]
    fn sizes_cover_every_octave() {
        let mut random = SeededChoices::new(1);
        let sizes: Vec<u64> = (0..1000).map(|_| random.size(14)).collect();
        assert!((0..14).all(|power| sizes.iter().any(|size| size.ilog2() == power)));
        assert!(sizes.iter().all(|size| *size < 1 << 14) && sizes.iter().filter(|size| *size % 2 == 1).count() > 300);
    }
}
