//! Formatting of numbers, columns and long texts for charts.

use ginlab_base::size;

/// Units, as the suffix of a column's name and in readable form. A statistic may follow the unit: `_us_p50`.
const UNITS: [(&str, &str); 6] =
    [("_gbytes_s", "GB/s"), ("_gbits_s", "Gb/s"), ("_mops", "Mops"), ("_bytes", "bytes"), ("_pct", "%"), ("_us", "us")];

/// Returns the readable name of a column: `time_us_p50` becomes `time p50 (us)`.
pub fn column(name: &str) -> String {
    for (ending, unit) in UNITS {
        if let Some((quantity, rest)) = name.split_once(ending)
            && (rest.is_empty() || rest.starts_with('_'))
        {
            return format!("{quantity}{rest} ({unit})").replace('_', " ");
        }
    }
    name.replace('_', " ")
}

/// Returns whether a column contains sizes, which are shown as powers of two.
pub fn is_binary(column: &str) -> bool {
    column.ends_with("_bytes")
}

/// Formats a size in the syntax of options: `64`, `4K`, `1M`.
pub fn binary(bytes: f64) -> String {
    if bytes < 0.0 || bytes.fract() != 0.0 || bytes >= u64::MAX as f64 {
        return plain(bytes);
    }
    let text = size::human(bytes as u64);
    text.trim_end_matches('B').trim_end_matches('i').replace(' ', "")
}

/// Formats a number with as many digits as it needs, but at most six: `0.05`, `250`, `2e6`.
pub fn plain(value: f64) -> String {
    let value: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    match value.abs() {
        0.0 => "0".into(),
        1e-3..1e6 => format!("{value}"),
        _ => format!("{value:e}"),
    }
}

/// Formats a number with three significant digits: `0.0753`, `1.80`, `794`.
pub fn short(value: f64) -> String {
    let digits: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let decimals = if digits == 0.0 { 0 } else { (2.0 - digits.abs().log10().floor()).clamp(0.0, 9.0) as usize };
    format!("{digits:.decimals$}")
}

/// Returns the name of a file in words: `3-four-buffers.life.csv` becomes `3 four buffers`.
pub fn file(name: &str) -> String {
    match name.strip_suffix(".csv") {
        Some(stem) => stem.trim_end_matches(".life").replace(['-', '_'], " "),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_get_readable_names() {
        let shown = ["time_us_p50", "bandwidth_gbytes_s", "rate_mops", "size_bytes", "line_rate_pct", "grid", "rail_x"];
        insta::assert_snapshot!(shown.map(column).join(", "), @"time p50 (us), bandwidth (GB/s), rate (Mops), size (bytes), line rate (%), grid, rail x");
    }

    #[test]
    fn numbers_and_sizes() {
        let numbers = [0.0, 0.05, 1.0, 250.0, 99_999.0, 2e6, 0.0002, 1.0 / 3.0, -40.0, 0.1 + 0.2];
        insta::assert_snapshot!(numbers.map(plain).join(", "), @"0, 0.05, 1, 250, 99999, 2e6, 2e-4, 0.333333, -40, 0.3");
        let sizes = [0.0, 64.0, 1000.0, 4096.0, 4097.0, 1048576.0, 1572864.0, 1e10, 0.5];
        insta::assert_snapshot!([0.0, 0.075268, 1.7985, 793.66, 1671.25].map(short).join(", "), @"0, 0.0753, 1.80, 794, 1670");
        insta::assert_snapshot!(["3-four-buffers.life.csv", "two_rings.csv", "a name"].map(file).join(", "), @"3 four buffers, two rings, a name");
        insta::assert_snapshot!(sizes.map(binary).join(", "), @"0, 64, 1000, 4K, 4097, 1M, 1536K, ~9.3G, 0.5");
    }

    proptest! {
        #[test]
        fn any_number_has_short_label(value in any::<f64>()) {
            prop_assert!(plain(value).len() <= 14, "{}", plain(value));
            binary(value);
        }
    }
}
