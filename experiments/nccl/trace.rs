//! Traces of single puts: one JSON object per line, or slices for Perfetto.

use super::records::CommunicatorRecord;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

/// Writes every recorded put, get and arrival: in Chrome's trace format if the file ends in `.json`, otherwise one per
/// line.
pub fn write(records: &[CommunicatorRecord], file: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let entries = entries(records);
    let mut out = std::io::BufWriter::new(std::fs::File::create(file).map_err(failed)?);
    if file.extension().is_some_and(|extension| extension == "json") {
        let drawn = json!({ "displayTimeUnit": "ns", "traceEvents": slices(&entries) });
        write!(out, "{drawn}").map_err(failed)?;
    } else {
        for entry in &entries {
            writeln!(out, "{entry}").map_err(failed)?;
        }
    }
    out.flush().map_err(failed)?;
    let missed: u64 = records.iter().map(|record| record.not_recorded).sum();
    if missed > 0 {
        eprintln!("ginlab: {missed} puts are not in {}: each communicator records only its first puts", file.display());
    }
    Ok(())
}

/// Returns the entries ordered by time, in nanoseconds since the first.
fn entries(records: &[CommunicatorRecord]) -> Vec<Value> {
    let mut all: Vec<(u64, Value)> = Vec::new();
    for record in records {
        for entry in &record.trace {
            let mut entry = entry.clone();
            entry["communicator"] = record.communicator.clone().into();
            entry["rank"] = record.rank.into();
            all.push((entry["asked_ns"].as_u64().unwrap_or_default(), entry));
        }
    }
    all.sort_by_key(|(time, _)| *time);
    let begin = all.first().map_or(0, |(time, _)| *time);
    let relative = |(_, mut entry): (u64, Value)| {
        for name in ["asked_ns", "done_ns"] {
            let value = entry[name].as_u64().unwrap_or_default().saturating_sub(begin);
            entry[name] = value.into();
        }
        entry
    };
    all.into_iter().map(relative).collect()
}

/// Returns a process for each rank, and a slice for each put from NCCL's call to its completion, and to its arrival at
/// the peer.
fn slices(entries: &[Value]) -> Vec<Value> {
    let mut events = Vec::new();
    let ranks = entries.iter().filter_map(|entry| entry["rank"].as_u64()).max().map_or(0, |most| most + 1);
    for rank in 0..ranks {
        let name = format!("rank {rank}");
        events.push(json!({ "ph": "M", "pid": rank, "name": "process_name", "args": { "name": name } }));
    }
    for (id, entry) in entries.iter().enumerate() {
        let number = |name: &str| entry[name].as_u64().unwrap_or_default();
        let (bytes, peer) = (number("bytes"), number("peer"));
        let name = match entry["kind"].as_str().unwrap_or_default() {
            "arrival" => format!("{bytes} B of rank {peer} arrive"),
            kind => format!("{kind} {bytes} B, rank {peer}"),
        };
        let words = json!({
            "number": number("number"), "context": number("context"), "signal": entry["signal"], "add": entry["add"],
            "communicator": entry["communicator"],
        });
        for (phase, at) in [("b", number("asked_ns")), ("e", number("done_ns").max(number("asked_ns")))] {
            events.push(json!({
                "ph": phase, "cat": entry["kind"], "id": id, "pid": entry["rank"], "tid": entry["context"], "name": name,
                "ts": at as f64 / 1000.0, "args": words,
            }));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::super::records::tests::record;
    use super::*;

    fn both() -> [CommunicatorRecord; 2] {
        [record(1, [0, 0], [0, 0]), record(0, [0, 0], [0, 0])]
    }

    fn written(name: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(name);
        write(&both(), &file).expect("written");
        std::fs::read_to_string(file).expect("text")
    }

    #[test]
    fn trace_is_sorted_by_time() {
        let text = written("puts.jsonl");
        let time =
            |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["asked_ns"].as_u64().expect("a time");
        assert_eq!(text.lines().map(time).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn perfetto_trace_has_matching_slices() {
        let text: Value = serde_json::from_str(&written("puts.json")).expect("JSON");
        let events = text["traceEvents"].as_array().expect("a list");
        let phases: Vec<&str> = events.iter().filter_map(|event| event["ph"].as_str()).collect();
        assert_eq!(phases, ["M", "M", "b", "e", "b", "e"]);
        assert!(events[3]["ts"].as_f64() > events[2]["ts"].as_f64());
    }
}
