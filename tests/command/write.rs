//! `ginlab write` and `ginlab sendrecv`: rows, verification, invalid input, peers that die.

use crate::common;

use std::process::Command;

use crate::common::lab::{self, Lab};
use crate::common::{OutputStream, ProcessGroup, ginlab, run};
use ginlab::report::Row;
use nix::sys::signal::{Signal, kill};

#[track_caller]
fn rows(args: &str) -> Vec<Row> {
    let done = run(ginlab(&format!("{args} -d emulated --csv -"))).expect(0);
    common::rows(&done.stdout)
}

#[track_caller]
fn refused(args: &str, part: &str) {
    let done = run(ginlab(args)).expect(2);
    assert!(done.complaint().contains(part), "{part}: {}", done.complaint());
    assert_eq!(done.stdout, "");
}

#[test]
fn writes_of_every_kind_are_verified() {
    let rows = rows(
        "write -p tcp --np 4 -b 1 -e 5000 -f 70 -n 6 -r 2 --rails 1,3 --strategy split,round-robin --targets one,turn,all --window 1,5",
    );
    assert_eq!(rows.len(), 3 * 2 * 2 * 2 * 3);
    for row in &rows {
        assert_eq!((row.status.to_string().as_str(), row.wrong_bytes), ("ok", Some(0)), "{row:?}");
        assert_eq!(row.own("rail_bytes").list().unwrap().len() as u32, row.rails.unwrap());
    }
    let spread = |row: &&Row| {
        row.strategy.as_deref() == Some("round-robin") && row.rails == Some(3) && row.size_bytes == Some(4900)
    };
    for row in rows.iter().filter(spread) {
        let bytes = row.own("rail_bytes").list().unwrap();
        let (most, least) = (bytes.iter().max().unwrap(), bytes.iter().min().unwrap());
        assert!(most - least <= 2 * 4900, "{bytes:?}");
    }
}

#[test]
fn pinned_ranks_get_separate_cores_or_note() {
    let done = run(ginlab("write -p tcp --np 2 -b 64 -e 64 -n 5 -r 1 --rails 1 -d emulated --pin --json -")).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let notes = document["header"]["notes"].to_string();
    assert!(notes.contains("rank 0 is pinned to core ") || notes.contains("ranks are not pinned"), "{notes}");
}

#[test]
fn bare_loop_is_measured() {
    let rows = rows("write -p tcp -b 64 -e 4K -f 64 -n 50 -r 3 --rails 1 --window 8 --buffers 1 --bare --batch 4");
    assert_eq!(
        rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(),
        ["write", "bare-write", "write", "bare-write"]
    );
    assert!(rows[0].baseline.as_deref() == Some("bare-write") && rows[0].baseline_ratio.unwrap() > 0.0);
    assert!(rows.iter().all(|row| row.wrong_bytes == Some(0)), "{rows:?}");
}

#[test]
fn first_writes_are_timed_once_per_number_of_rails() {
    let rows = rows("write -p tcp -b 64 -e 4K -f 64 -n 20 -r 2 --rails 1,2 --per-node");
    const COLD: [&str; 4] = ["register_us", "insert_us", "first_us", "second_us"];
    let writes: Vec<&Row> = rows.iter().filter(|row| row.case == "write").collect();
    let filled = |row: &Row| COLD.map(|name| row.own(name).number().is_some_and(|time| time > 0.0));
    assert_eq!(
        writes.iter().map(|row| filled(row)).collect::<Vec<_>>(),
        [[true; 4], [false; 4], [true; 4], [false; 4]]
    );
    // Sums of nodes have none.
    assert!(rows.iter().filter(|row| row.case != "write").all(|row| filled(row) == [false; 4]));
}

#[test]
fn messages_in_both_directions_are_verified() {
    let rows = rows("sendrecv -p tcp -b 0 -e 9000 -f 90 -n 30 -r 2 --rails 1,2 --window 7");
    assert_eq!(rows.len(), 2 * 2 * 4);
    assert!(rows.iter().all(|row| row.status.to_string() == "ok" && row.wrong_bytes == Some(0)), "{rows:?}");
    let modes: Vec<_> = rows.iter().map(|row| row.mode.clone().unwrap()).collect();
    assert!(modes[..8].iter().all(|mode| mode == "roundtrip") && modes[8..].iter().all(|mode| mode == "window"));
    assert!(rows[0].own("ack_us_p99").number().unwrap() >= rows[0].own("ack_us_p50").number().unwrap());
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("write --rails 0", "--rails"),
        ("write --rails 65", "from 1 to 64"),
        ("write --window 0", "--window"),
        ("write --strategy stripe", "round-robin"),
        ("write -b 8 -e 4", "-b/-e/-f"),
        ("write -b 1X", "--begin"),
        ("write -b 0", "--begin: must be at least 1 byte"),
        ("write -b 0 -e 0", "must be at least 1 byte"),
        ("write --np 1", "at least 2 ranks"),
        ("write --at-least fast", "expected percent of the line rate, such as 85%, or Gb/s, such as 90"),
        ("write -p tcp --at-least 85%", "is not known; specify Gb/s, such as --at-least 90"),
        ("write --np 3", "even number"),
        ("write --provider nope", "nope"),
        ("write --csv - --json -", "stdout"),
        ("write -b 16T -e 16T --window 64", "-e"),
        ("write -b 1T -e 1T --window 1", "available"),
        ("write -p tcp --versus nope", "unknown provider \"nope\""),
        ("write -p tcp --versus model:p5", "--versus: model:p5: such rails"),
        ("sendrecv -p tcp --versus efa-verbs/soft:p3", "expected one of soft-efa:p4d"),
        ("sendrecv --np 3", "must be even"),
        ("sendrecv --rails 0", "--rails"),
        ("sendrecv -e 2T -b 2T", "1 TiB"),
    ] {
        refused(args, part);
    }
}

#[test]
fn killed_target_is_named_within_deadline() {
    for what in [
        "write -b 4K -e 4K -n 100000000 --volume 1024G",
        "sendrecv -b 8 -e 8 -n 100000000 --volume 1024G --mode window",
    ] {
        let mut job = ProcessGroup::start(ginlab(&format!("{what} -p tcp -r 1000 -t 5 --rails 1")));
        job.until(OutputStream::Stderr, "time_us is");
        kill(job.rank(1), Signal::SIGKILL).unwrap();
        let done = job.finish().expect(1);
        let text = done.complaint();
        assert!(text.contains("rank 1"), "{what}: {text}");
    }
}

/// A target is not notified of writes, and must not mistake a writer that makes progress for one that hangs. The
/// loopback of a namespace is shaped to make the run take this long on any machine.
#[test]
fn repeat_can_exceed_timeout() {
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let node = lab.namespace(0);
    lab::command(&format!("tc -n {node} qdisc add dev lo root tbf rate 200mbit burst 128kb latency 400ms")).unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &node, env!("CARGO_BIN_EXE_ginlab")]);
    command.args(
        "write -d emulated -p tcp --np 4 -b 256K -e 256K -n 56 --window 4 -r 1 -t 1 --rails 1 --csv -"
            .split_whitespace(),
    );
    common::clean(&mut command);
    let rows = common::rows(&run(command).expect(0).stdout);
    common::all_verified(&rows);
    assert!(rows[0].time_us_p50.unwrap() * 56.0 > 1.05e6, "{rows:?}");
}

/// Returns the values of columns of a row, joined by spaces.
fn texts(row: &Row, names: &[&str]) -> String {
    names.iter().map(|name| row.own(name).text().unwrap_or_default().to_owned()).collect::<Vec<_>>().join(" ")
}

/// A slow rail, one of four of a node, sends at an eighth of the rate of the others. Strategies give all rails equal
/// shares, so only the rail's own time reveals this.
#[test]
fn slow_rail_is_found_and_named() {
    // The rates are so low, and the limit of 0.025 Gb/s is so far from both, that a busy machine does not change the
    // verdict: a fast rail may lose two thirds of its rate, and the burst lets the slow one send some 12 Mb/s.
    let Some(lab) = Lab::up("--rate 80mbit") else { return };
    let node = lab.namespace(0);
    let slow = format!("tc -n {node} qdisc change dev rail2 root tbf rate 10mbit burst 128kb latency 400ms");
    lab::command(&slow).unwrap();
    let both = |args: &str| {
        let args = format!("write -d emulated -p tcp -n 12 -r 2 --window 4 {args}");
        let [first, second] = [0, 1].map(|node| ProcessGroup::start(lab.ginlab(node, &args)));
        [first.finish(), second.finish()]
    };
    let [first, second] = both("--each-rail -b 64K -e 64K --at-least 0.025 --csv -");
    let (first, second) = (first.expect(3), second.expect(3));
    let found = common::rows(&first.stdout);
    common::all_verified(&found);
    assert_eq!(found.len(), 2 * 4 * 2, "each of four rails in both directions, alone and together");
    let hosts = [texts(&found[0], &["node"]), texts(&found[0], &["peer"])];
    assert!(found.iter().all(|row| row.case == "rail" && row.line_rate_pct.is_none()), "{found:?}");
    let is_slow = |row: &&Row| row.own("rank").number() == Some(0.0) && row.own("domain").text() == Some("rail2");
    let index = found.iter().find(is_slow).unwrap().own("rail").number().unwrap();
    for mode in ["alone", "together"] {
        let of_mode: Vec<&Row> = found.iter().filter(|row| row.mode.as_deref() == Some(mode)).collect();
        let rate = |row: &&Row| row.bandwidth_gbits_s.unwrap();
        let slowest = of_mode.iter().copied().find(|row| is_slow(row)).unwrap();
        let others = of_mode.iter().copied().filter(|row| !is_slow(row)).map(|row| rate(&row)).fold(f64::MAX, f64::min);
        assert!(rate(&slowest) < 0.6 * others, "{mode}: {} and {others}", rate(&slowest));
        assert_eq!(texts(slowest, &["node", "peer", "domain"]), format!("{} {} rail2", hosts[0], hosts[1]));
    }
    let named = format!("{} rank 0 rail {index} (rail2) to {}: ", hosts[0], hosts[1]);
    let lines: Vec<&str> = first.stderr.lines().filter(|line| line.contains("slow rail: ")).collect();
    assert!(lines.iter().any(|line| line.starts_with(&format!("# slow rail: {named}"))), "{lines:?}");
    assert!(first.stderr.contains("of median") && first.stderr.contains("together"), "{}", first.stderr);
    for done in [&first, &second] {
        let verdict = format!("ginlab: 1 of 8 rails is below 0.025 Gb/s: {named}");
        assert!(done.complaints().iter().any(|line| line.starts_with(&verdict)), "{}", done.stderr);
    }

    // The sums of a node have each rail's own rate, although all rails carry equal shares.
    let [first, second] = both("-b 256K -e 256K --rails 4 --strategy split --per-node --csv -");
    second.expect(0);
    let rows = common::rows(&first.expect(0).stdout);
    let sum = rows.iter().find(|row| row.case == "node").unwrap();
    let bytes = sum.own("rail_bytes").list().unwrap();
    assert!(bytes.len() == 4 && bytes.iter().all(|share| *share == bytes[0]), "{bytes:?}");
    let [least, most] = ["rail_gbits_s_min", "rail_gbits_s_max"].map(|name| sum.own(name).number().unwrap());
    assert!(least < 0.6 * most, "{least} and {most}");
    // Without --each-rail, the rails of the fastest row are judged.
    let [first, _] = both("-b 256K -e 256K --rails 4 --strategy split --at-least 0.025 --csv -");
    let first = first.expect(3);
    assert!(first.stderr.contains(&format!("1 of 4 rails is below 0.025 Gb/s: {named}")), "{}", first.stderr);
}

#[test]
fn modelled_cards_require_proxy_programs() {
    let done = run(ginlab("write -d emulated -p model:p5")).expect(2);
    assert!(done.complaint().contains("programs with a proxy: proxy, shmem, "), "{done:?}");
}

#[test]
fn provider_without_rma_is_rejected_with_reason() {
    // Without the layer that adds RMA, udp has only datagrams.
    let mut command = ginlab("write -d emulated -p udp -b 8 -e 8 -n 1");
    command.env("FI_PROVIDER", "^ofi_rxd");
    let done = run(command).expect(2);
    let line = done.complaint();
    assert!(line.contains("rail udp") && line.contains("FI_RMA") && line.contains("FI_PROVIDER=^ofi_rxd"), "{line}");
}
