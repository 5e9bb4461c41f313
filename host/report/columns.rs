//! Which columns were chosen, and so tell one measurement from another, and which were measured.

/// The columns that were chosen, in the order in which they are worth being named. Two rows with the same values in all of
/// them are two measurements of one thing.
pub const CHOSEN: [&str; 29] = [
    "experiment",
    "case",
    "stage",
    "mode",
    "memory",
    "rails",
    "strategy",
    "fabric",
    "operation",
    "store",
    "width_bytes",
    "size_bytes",
    "grid",
    "block",
    "scope",
    "launch",
    "direction",
    "pair",
    "rings",
    "consumers",
    "slot_bytes",
    "ring_slots",
    "ring_memory",
    "window",
    "fill",
    "proxy_threads",
    "completion",
    "ranks",
    "device",
];

/// Whether a column was chosen. Columns that are not known, as of a later version, count as measured.
pub fn is_chosen(column: &str) -> bool {
    CHOSEN.contains(&column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    /// Everything else in a row. A new column must be put here or above: it is never guessed which it is.
    const MEASURED: [&str; 39] = [
        "schema",
        "iterations",
        "time_us_min",
        "time_us_p50",
        "time_us_p99",
        "bandwidth_gbytes_s",
        "rate_mops",
        "line_rate_pct",
        "baseline",
        "baseline_ratio",
        "wrong",
        "status",
        "time_us_max",
        "cv_pct",
        "repeats",
        "post_us_p50",
        "post_rate_mops",
        "bandwidth_gbits_s",
        "again",
        "rail_bytes",
        "suspect",
        "push_us_p50",
        "push_us_p99",
        "push_us_p999",
        "ack_us_p50",
        "ack_us_p99",
        "ack_us_p999",
        "full_stalls",
        "host_polls",
        "lost_exchanges",
        "watched",
        "empty_polls",
        "received_us_p50",
        "one_way_ratio",
        "knee",
        "algbw_gbytes_s",
        "busbw_gbytes_s",
        "imbalance_pct",
        "pair_gbytes_s",
    ];

    #[test]
    fn every_column_of_a_row_is_one_or_the_other() {
        for column in Row::COLUMNS {
            assert_ne!(is_chosen(column), MEASURED.contains(column), "{column}");
        }
        for column in CHOSEN.iter().filter(|column| **column != "stage").chain(&MEASURED) {
            assert!(Row::COLUMNS.contains(column), "{column} is no column");
        }
    }
}
