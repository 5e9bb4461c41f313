//! Lines of a server on stdout: what happened, and the facts as `name=value`. They are its data.

use ginlab::signals;
use ginlab::text::printable;
use std::io::Write;

/// A blank in a value becomes `_`, so that a line splits at blanks, and what would act on a terminal (values may come from other
/// hosts) becomes `?`.
fn line(what: &str, facts: &[(&str, String)]) -> String {
    let facts = facts.iter().map(|(name, value)| {
        let value: String = value.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let value = printable(&value);
        format!(" {name}={value}")
    });
    format!("{what}{}\n", facts.collect::<String>())
}

/// Prints one line at once.
pub fn print(what: &str, facts: &[(&str, String)]) {
    let line = line(what, facts);
    // A closed pipe is noted by the writer itself, and ends the server as Ctrl-C does.
    let mut out = signals::stdout();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_host_neither_acts_on_the_terminal_nor_makes_facts() {
        let facts = [("peer", "a\x1b[2Jb\u{9b}1m".to_owned()), ("why", "two words\nrow=1\t".to_owned())];
        assert_eq!(line("gone", &facts), "gone peer=a?[2Jb?1m why=two_words_row=1_\n");
    }
}
