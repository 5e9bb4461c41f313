//! Record of each rank: a file per communicator with its statistics.

use crate::coll::Coll;
use crate::counts::{PeerTotals, TraceEntry};
use crate::process::{locked, say};
use ginlab_rails::Counters;
use serde::Serialize;
use std::path::Path;

/// Contents of the file for one communicator of one rank.
#[derive(Serialize)]
struct Record<'a> {
    schema: u32,
    communicator: String,
    rank: usize,
    ranks: usize,
    pid: u32,
    rails: String,
    rail_names: &'a [String],
    rail_bytes: &'a [u64],
    rail_transfers: &'a [u64],
    again: u64,
    copies: &'a str,
    failure: Option<&'a str>,
    ended: bool,
    to: &'a [PeerTotals],
    from: &'a [PeerTotals],
    not_recorded: u64,
    trace: &'a [TraceEntry],
}

/// Writes the record if records are requested: after the ranks have connected, on a failure, and at the end, which a
/// failing program may not reach.
pub fn write(coll: &Coll, names: &[String], counters: &Counters, copies: &str, ended: bool) {
    let Some(folder) = &coll.settings.records else { return };
    let counts = locked(&coll.counts);
    let record = Record {
        schema: 1,
        communicator: format!("{:016x}", coll.number),
        rank: coll.rank,
        ranks: coll.ranks,
        pid: std::process::id(),
        rails: coll.settings.rails_text(),
        rail_names: names,
        rail_bytes: &counters.rail_bytes,
        rail_transfers: &counters.rail_transfers,
        again: counters.again,
        copies,
        failure: coll.failure(),
        ended,
        to: &counts.to,
        from: &counts.from,
        not_recorded: counts.missed,
        trace: &counts.trace,
    };
    let file = folder.join(format!("{:016x}-{:05}.json", coll.number, coll.rank));
    if let Err(why) = save(&file, &record) {
        say(&format!("rank {}: {}: {why}", coll.rank, file.display()));
    }
}

fn save(file: &Path, record: &Record<'_>) -> Result<(), String> {
    let text = serde_json::to_vec(record).map_err(|error| error.to_string())?;
    std::fs::write(file, text).map_err(|error| error.to_string())
}
