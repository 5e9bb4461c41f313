//! Lines of a server on stdout: what happened, and the facts as `name=value`. They are its data.

use ginlab::signals;
use ginlab::text::printable;
use std::io::Write;

/// Prints one line at once. A blank in a value becomes `_`, so that a line splits at blanks, and what would act on a terminal
/// (values may come from other hosts) becomes `?`.
pub fn print(what: &str, facts: &[(&str, String)]) {
    let facts = facts.iter().map(|(name, value)| {
        let value: String = value.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let value = printable(&value);
        format!(" {name}={value}")
    });
    let line = format!("{what}{}\n", facts.collect::<String>());
    // A closed pipe is noted by the writer itself, and ends the server as Ctrl-C does.
    let mut out = signals::stdout();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
