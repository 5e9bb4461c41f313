//! Table of domains: one line each, without columns that are empty for all domains.

use super::row::EfaRow;
use crate::listing::{ListingColumn, yes};

/// Columns of the table.
pub const COLUMNS: [ListingColumn<EfaRow>; 18] = [
    ("provider", "", |row| row.listed.domain.provider.clone()),
    ("fabric", "", |row| row.listed.domain.fabric.clone()),
    ("domain", "", |row| row.listed.domain.name.clone()),
    ("rails", "", |row| row.rails.unwrap_or_default().to_owned()),
    ("address", "", |row| row.listed.address.clone().unwrap_or_default()),
    ("Gb/s", "", |row| row.gbits_s().map(|rate| rate.to_string()).unwrap_or_default()),
    ("PCI", "address", |row| row.listed.domain.pci.map(|address| address.to_string()).unwrap_or_default()),
    ("NUMA", "node", |row| row.listed.numa_node.map(|node| node.to_string()).unwrap_or_default()),
    ("nearest", "GPU", |row| row.listed.gpu.map(|address| address.to_string()).unwrap_or_default()),
    ("RMA", "write", |row| yes(Some(row.listed.has_rma()))),
    ("imm.", "bytes", |row| row.listed.domain.immediate_bytes.to_string()),
    ("HMEM", "", |row| yes(row.listed.cuda_memory)),
    ("delivery", "complete", |row| yes(row.listed.delivery_complete)),
    ("max message", "bytes", |row| row.listed.max_message_bytes.map(message).unwrap_or_default()),
    ("threads,", "progress", |row| {
        let word = |text: &Option<String>, prefix| short(text.as_deref().unwrap_or_default(), prefix);
        format!("{},{}", word(&row.listed.threading, "FI_THREAD_"), word(&row.listed.progress, "FI_PROGRESS_"))
    }),
    ("in order", "", |row| row.listed.order.as_deref().map(order).unwrap_or_default()),
    ("mr mode", "", |row| {
        let words: Vec<_> = row.listed.mr_mode.iter().map(|word| short(word, "FI_MR_")).collect();
        words.join(" ")
    }),
    // This is set only in rows that `--all` shows.
    ("hidden because", "", |row| row.hidden.clone().unwrap_or_default()),
];

fn short(word: &str, prefix: &str) -> String {
    word.trim_start_matches(prefix).to_lowercase()
}

fn message(bytes: u64) -> String {
    if bytes == u64::MAX { "no limit".to_owned() } else { bytes.to_string() }
}

/// Returns which consecutive operations arrive in order: writes, sends, both or neither.
fn order(kept: &[String]) -> String {
    let has = |names: &[&str]| kept.iter().any(|word| names.contains(&word.as_str()));
    // FI_ORDER_WAW covers writes and atomics, FI_ORDER_RMA_WAW only writes. FI_ORDER_SAS is the only bit of sends.
    match (has(&["FI_ORDER_WAW", "FI_ORDER_RMA_WAW"]), has(&["FI_ORDER_SAS"])) {
        (true, true) => "writes,sends",
        (true, false) => "writes",
        (false, true) => "sends",
        (false, false) => "nothing",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_names_only_guaranteed_operations() {
        let of = |names: &[&str]| order(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["FI_ORDER_SAS", "FI_ORDER_RMA_WAW"]), "writes,sends");
        assert_eq!(of(&["FI_ORDER_RAW", "FI_ORDER_WAW"]), "writes");
        assert_eq!(of(&["FI_ORDER_SAR", "FI_ORDER_SAS"]), "sends");
        // A send after a write, a write after a send, and atomics.
        assert_eq!(of(&["FI_ORDER_SAW", "FI_ORDER_WAS", "FI_ORDER_ATOMIC_WAW", "FI_ORDER_RMA_RAR"]), "nothing");
    }
}
