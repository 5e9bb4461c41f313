//! Numbers, columns and long texts as a picture shows them.

use crate::measure::size;

/// Units as they end the names of columns, and as people write them. A unit may be followed by a statistic: `_us_p50`.
const UNITS: [(&str, &str); 6] =
    [("_gbytes_s", "GB/s"), ("_gbits_s", "Gb/s"), ("_mops", "Mops"), ("_bytes", "bytes"), ("_pct", "%"), ("_us", "us")];

/// The name of a column for people: `time_us_p50` is `time p50 (us)`.
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

/// Whether a column holds sizes, which are powers of two.
pub fn is_binary(column: &str) -> bool {
    column.ends_with("_bytes")
}

/// A size as the options take it: `64`, `4K`, `1M`.
pub fn binary(bytes: f64) -> String {
    if bytes < 0.0 || bytes.fract() != 0.0 || bytes >= u64::MAX as f64 {
        return plain(bytes);
    }
    let text = size::human(bytes as u64);
    text.trim_end_matches('B').trim_end_matches('i').replace(' ', "")
}

/// A number with the digits it needs, six at most: `0.05`, `250`, `2e6`.
pub fn plain(value: f64) -> String {
    let value: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    match value.abs() {
        0.0 => "0".into(),
        1e-3..1e6 => format!("{value}"),
        _ => format!("{value:e}"),
    }
}

/// About how wide a text will be. The viewer chooses the font, so this errs on the wide side.
pub fn width(text: &str, size: u32) -> u32 {
    let em: f64 = text
        .chars()
        .map(|char| match char {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '(' | ')' | ' ' => 0.36,
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
            'A'..='Z' => 0.70,
            // The wide letters of DejaVu Sans, which many machines fall back to.
            char if char.is_ascii() => 0.635,
            _ => 1.0,
        })
        .sum();
    (em * f64::from(size)).ceil() as u32
}

/// Breaks a text between words into lines of at most this width. A word that is longer than a line stands alone, and is
/// cut where even that does not fit.
pub fn wrap(text: &str, size: u32, most: u32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let joined = lines.last().map(|line| format!("{line} {word}")).filter(|line| width(line, size) <= most);
        match (joined, lines.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => lines.push(cut(word, size, most)),
        }
    }
    lines
}

/// The text, or as much of it as fits and a mark.
fn cut(text: &str, size: u32, most: u32) -> String {
    let mut text = text.to_owned();
    let whole = text.len();
    while width(&text, size) > most && text.pop().is_some() {}
    if text.len() < whole {
        text.pop();
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_for_people() {
        let shown = ["time_us_p50", "bandwidth_gbytes_s", "rate_mops", "size_bytes", "line_rate_pct", "grid", "rail_x"];
        insta::assert_snapshot!(shown.map(column).join(", "), @"time p50 (us), bandwidth (GB/s), rate (Mops), size (bytes), line rate (%), grid, rail x");
    }

    #[test]
    fn numbers_and_sizes() {
        let numbers = [0.0, 0.05, 1.0, 250.0, 99_999.0, 2e6, 0.0002, 1.0 / 3.0, -40.0, 0.1 + 0.2];
        insta::assert_snapshot!(numbers.map(plain).join(", "), @"0, 0.05, 1, 250, 99999, 2e6, 2e-4, 0.333333, -40, 0.3");
        let sizes = [0.0, 64.0, 1000.0, 4096.0, 4097.0, 1048576.0, 1572864.0, 1e10, 0.5];
        insta::assert_snapshot!(sizes.map(binary).join(", "), @"0, 64, 1000, 4K, 4097, 1M, 1536K, ~9.3G, 0.5");
    }

    #[test]
    fn long_texts_are_broken_and_long_words_cut() {
        let lines = wrap("device gpu:NVIDIA H200 · fabric tcp;ofi_rxm · a-file-with-a-very-long-name.csv", 11, 150);
        insta::assert_snapshot!(lines.join("\n"), @r"
        device gpu:NVIDIA H200
        · fabric tcp;ofi_rxm ·
        a-file-with-a-very-lo…
        ");
        assert!(lines.iter().all(|line| width(line, 11) <= 150), "{lines:?}");
    }

    proptest! {
        #[test]
        fn any_number_has_a_short_label(value in any::<f64>()) {
            prop_assert!(plain(value).len() <= 14, "{}", plain(value));
            binary(value);
        }
    }
}
