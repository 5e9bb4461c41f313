//! Records that the plugin of each rank writes: tables, a check that nothing was lost, and single puts.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Operations from or to one peer.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PeerRecord {
    puts: u64,
    bytes: u64,
    signals: u64,
    added: u64,
    gets: u64,
    get_bytes: u64,
    sizes: Vec<(u64, u64)>,
    delivery_ns: u64,
    slowest_ns: u64,
}

/// Record of one rank in one communicator.
#[derive(Clone, Debug, Deserialize)]
pub struct CommunicatorRecord {
    pub communicator: String,
    pub rank: usize,
    ranks: usize,
    rails: String,
    rail_names: Vec<String>,
    rail_bytes: Vec<u64>,
    rail_transfers: Vec<u64>,
    copies: String,
    failure: Option<String>,
    /// Whether the program has closed the communicator.
    ended: bool,
    to: Vec<PeerRecord>,
    from: Vec<PeerRecord>,
    pub not_recorded: u64,
    pub trace: Vec<serde_json::Value>,
}

/// Reads all records of a directory, ordered by communicator and rank.
pub fn read(folder: &Path) -> Result<Vec<CommunicatorRecord>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut records: Vec<CommunicatorRecord> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read(&path).map_err(failed)?;
        records.push(serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    records.sort_by(|a, b| (&a.communicator, a.rank).cmp(&(&b.communicator, b.rank)));
    Ok(records)
}

fn micros(ns: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { ns as f64 / count as f64 / 1e3 }
}

/// Formats the upper bound of a size class.
fn below(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes > 1 << 20 => format!("<{}M", bytes >> 20),
        _ if bytes > 1 << 10 => format!("<{}K", bytes >> 10),
        _ => format!("<{bytes}"),
    }
}

/// Writes a table with a line for each rank and each peer that sent data to it.
pub fn table(records: &[CommunicatorRecord], out: &mut impl Write) {
    // Ignore the error: stderr may be closed.
    let _ = write_table(records, out);
}

fn write_table(records: &[CommunicatorRecord], out: &mut impl Write) -> std::io::Result<()> {
    let Some(first) = records.first() else { return Ok(()) };
    writeln!(out, "ginlab: NCCL's puts over {} ({})", first.rails, first.copies)?;
    let mut sums: BTreeMap<(usize, usize), PeerRecord> = BTreeMap::new();
    for record in records {
        for (peer, flow) in record.from.iter().enumerate().filter(|(_, flow)| flow.puts + flow.gets > 0) {
            let sum = sums.entry((peer, record.rank)).or_default();
            sum.puts += flow.puts;
            sum.bytes += flow.bytes;
            sum.signals += flow.signals;
            sum.gets += flow.gets;
            sum.get_bytes += flow.get_bytes;
            sum.delivery_ns += flow.delivery_ns;
            sum.slowest_ns = sum.slowest_ns.max(flow.slowest_ns);
            for (size, count) in &flow.sizes {
                match sum.sizes.iter_mut().find(|(known, _)| known == size) {
                    Some((_, known)) => *known += count,
                    None => sum.sizes.push((*size, *count)),
                }
            }
        }
    }
    if !sums.is_empty() {
        writeln!(
            out,
            "{:>5} {:>4} {:>9} {:>13} {:>9} {:>7} {:>12} {:>10} {:>10}  puts by size",
            "from", "to", "puts", "bytes", "signals", "gets", "get bytes", "mean us", "most us"
        )?;
    }
    for ((from, to), mut flow) in sums {
        flow.sizes.sort_unstable();
        let sizes: Vec<String> = flow.sizes.iter().map(|(size, count)| format!("{} {count}", below(*size))).collect();
        writeln!(
            out,
            "{from:>5} {to:>4} {:>9} {:>13} {:>9} {:>7} {:>12} {:>10.1} {:>10.1}  {}",
            flow.puts,
            flow.bytes,
            flow.signals,
            flow.gets,
            flow.get_bytes,
            micros(flow.delivery_ns, flow.puts),
            micros(flow.slowest_ns, 1),
            sizes.join(", ")
        )?;
    }
    writeln!(
        out,
        "us: time from NCCL's call on the sender until the bytes are in the receiver's memory, by the machine's clock"
    )?;
    let mut rails: BTreeMap<(usize, &str), (u64, u64)> = BTreeMap::new();
    for record in records {
        for (index, name) in record.rail_names.iter().enumerate() {
            let sum = rails.entry((index, name)).or_default();
            sum.0 += record.rail_bytes.get(index).copied().unwrap_or_default();
            sum.1 += record.rail_transfers.get(index).copied().unwrap_or_default();
        }
    }
    let mut by_rail: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for ((index, _), (bytes, transfers)) in rails {
        let sum = by_rail.entry(index).or_default();
        (sum.0, sum.1) = (sum.0 + bytes, sum.1 + transfers);
    }
    let text: Vec<String> = by_rail
        .iter()
        .map(|(index, (bytes, transfers))| format!("rail {index}: {transfers} transfers, {bytes} B"))
        .collect();
    writeln!(out, "all ranks, including headers of 128 B and answers: {}", text.join("; "))?;
    for record in records.iter().filter(|record| !record.ended) {
        writeln!(
            out,
            "rank {} has not closed communicator {}: its counts are incomplete",
            record.rank, record.communicator
        )?;
    }
    for record in records.iter().filter(|record| record.failure.is_some()) {
        let why = record.failure.as_deref().unwrap_or_default();
        writeln!(out, "rank {} of communicator {} failed: {why}", record.rank, record.communicator)?;
    }
    Ok(())
}

/// Checks that each put and signal arrived exactly once. Returns the first difference in one line, if any.
/// Communicators with a rank that failed or did not close are skipped.
pub fn conservation(records: &[CommunicatorRecord]) -> Option<String> {
    let mut all: BTreeMap<&str, Vec<&CommunicatorRecord>> = BTreeMap::new();
    for record in records {
        all.entry(&record.communicator).or_default().push(record);
    }
    for (communicator, members) in all {
        let whole = members.first().is_some_and(|first| members.len() == first.ranks);
        if !whole || members.iter().any(|record| !record.ended || record.failure.is_some()) {
            continue;
        }
        for sender in &members {
            for receiver in &members {
                let (sent, come) = (sender.to.get(receiver.rank)?, receiver.from.get(sender.rank)?);
                for (what, sent, come) in [
                    ("puts", sent.puts, come.puts),
                    ("bytes", sent.bytes, come.bytes),
                    ("signals", sent.signals, come.signals),
                    ("sum of signals", sent.added, come.added),
                ] {
                    if sent != come {
                        return Some(format!(
                            "communicator {communicator}: rank {} has sent {sent} {what} to rank {}, but {come} have \
                             arrived",
                            sender.rank, receiver.rank
                        ));
                    }
                }
            }
        }
    }
    None
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn record(rank: usize, to: [u64; 2], from: [u64; 2]) -> CommunicatorRecord {
        let flow = |puts: u64| PeerRecord {
            puts,
            bytes: puts * 8,
            signals: puts,
            added: puts,
            sizes: vec![(16, puts)],
            delivery_ns: puts * 2000,
            ..PeerRecord::default()
        };
        CommunicatorRecord {
            communicator: "c".into(),
            rank,
            ranks: 2,
            rails: "1 x shared".into(),
            rail_names: vec!["shared".into()],
            rail_bytes: vec![100],
            rail_transfers: vec![2],
            copies: "copies".into(),
            failure: None,
            ended: true,
            to: to.map(flow).into(),
            from: from.map(flow).into(),
            not_recorded: 0,
            trace: vec![serde_json::json!({"kind": "put", "asked_ns": 50 + rank, "done_ns": 70})],
        }
    }

    #[test]
    fn lost_puts_are_reported() {
        let good = [record(0, [1, 2], [1, 3]), record(1, [3, 0], [2, 0])];
        assert_eq!(conservation(&good), None);
        let bad = [record(0, [1, 2], [1, 3]), record(1, [3, 0], [1, 0])];
        let said = conservation(&bad).expect("a put is missing");
        assert_eq!(said, "communicator c: rank 0 has sent 2 puts to rank 1, but 1 have arrived");
        // Communicators with a missing or truncated record are not checked.
        assert_eq!(conservation(&bad[..1]), None);
        let [first, second] = bad;
        assert_eq!(conservation(&[CommunicatorRecord { ended: false, ..first }, second]), None);
    }

    #[test]
    fn table_has_one_line_per_pair() {
        let mut out = Vec::new();
        write_table(&[record(0, [1, 2], [1, 3]), record(1, [3, 0], [2, 0])], &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[3].split_whitespace().take(4).eq(["0", "1", "2", "16"]), "{text}");
        assert!(text.contains("rail 0: 4 transfers, 200 B") && text.contains("<16 3"), "{text}");
    }
}
