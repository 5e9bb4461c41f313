//! Event lines that a server prints on stdout: the event, then facts as `name=value`, for other programs to parse.

use ginlab::signals;
use ginlab::text::printable;
use std::io::Write;

/// Formats an event. Whitespace in a value becomes `_`, so that a line can be split at spaces. Control characters
/// become `?`, because values may come from other hosts and must not control a terminal.
fn line(what: &str, facts: &[(&str, String)]) -> String {
    let facts = facts.iter().map(|(name, value)| {
        let value: String = value.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let value = printable(&value);
        format!(" {name}={value}")
    });
    format!("{what}{}\n", facts.collect::<String>())
}

/// Prints one event and flushes stdout.
pub fn print(what: &str, facts: &[(&str, String)]) {
    let line = line(what, facts);
    // The writer records a closed pipe, which then ends the server like Ctrl-C.
    let mut out = signals::stdout();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_values_are_escaped_in_events() {
        let facts = [("peer", "a\x1b[2Jb\u{9b}1m".to_owned()), ("why", "two words\nrow=1\t".to_owned())];
        assert_eq!(line("gone", &facts), "gone peer=a?[2Jb?1m why=two_words_row=1_\n");
    }
}
