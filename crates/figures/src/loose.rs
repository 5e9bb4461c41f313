//! Numbers of a page that look like figures.

/// Stands before each row of a table, whose first cell is a setting.
const ROW: char = '\u{1}';

/// Units that make a number a figure.
const UNITS: [&str; 8] = ["us", "ns", "ms", "GB/s", "Gb/s", "MB/s", "Mops", "%"];

/// Text without what is no finding: blocks between fences, which are commands and what they print, and the heads of tables, which
/// are settings.
pub fn findings(text: &str) -> String {
    let mut fenced = false;
    let mut kept: Vec<String> = Vec::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if line.starts_with("|--") {
            kept.pop();
        } else if !fenced && !fence {
            kept.push(if line.starts_with('|') { format!("{ROW}{line}") } else { line.to_owned() });
        }
    }
    kept.join("\n")
}

/// Numbers with a decimal point or a unit, and those that have a cell of a table to themselves, each with what follows it.
/// Not those of `inline code` and of a link's target.
pub fn numbers(text: &str) -> Vec<String> {
    let text = without_targets(&without_inline_code(text));
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && (bytes[at].is_ascii_digit() || decimal_point(bytes, at)) {
            at += 1;
        }
        let before = &text[..start];
        let after = &text[at..];
        // Part of a name (p5, H200, 2026-11-21), of a number in braces (#.5), of a ratio of sizes (1x32).
        if before.ends_with(|letter: char| letter.is_alphanumeric() || "#-_./".contains(letter)) {
            continue;
        }
        let first = before.strip_suffix("| ").is_some_and(|before| before.ends_with(ROW));
        let cell = before.ends_with("| ") && after.starts_with(" |") && !first;
        if text[start..at].contains('.') || cell || has_unit(after) {
            let end = after.char_indices().nth(25).map_or(after.len(), |(end, _)| end);
            found.push(format!("{}{}", &text[start..at], &after[..end]).trim_end().to_owned());
        }
    }
    found
}

/// A point between two digits.
fn decimal_point(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
}

fn has_unit(after: &str) -> bool {
    let after = after.strip_prefix(' ').unwrap_or(after);
    UNITS.iter().any(|unit| after.strip_prefix(unit).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
}

fn without_inline_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + "]" + part.split_once(')').map_or("", |(_, after)| after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_from_settings() {
        let found = |text: &str| numbers(text).len();
        for figure in ["3.4", "3 us", "12%", "12 %", "| 12 |", "at 0.98 of", "(4 GB/s)"] {
            assert_eq!(found(figure), 1, "{figure}");
        }
        for setting in [
            "8 blocks",
            "64 B",
            "1x32",
            "132 x 256",
            "p5.48xlarge",
            "2026-11-21",
            "H200",
            "`3.4 us`",
            "[page](../1.5/2 us)",
            "#.# us",
            "| 12 MiB |",
        ] {
            assert_eq!(found(setting), 0, "{setting}");
        }
    }

    #[test]
    fn blocks_and_heads_of_tables_are_left_out() {
        assert_eq!(findings("a\n```\n1 us\n```\nb"), "a\nb");
        let rows = findings("| 8 | 32 |\n|---|---|\n| 1 | 2 |");
        assert_eq!(rows, "\u{1}| 1 | 2 |");
        assert_eq!(numbers(&rows), ["2 |"], "the first column has settings");
    }
}
