//! Output of findings as lines, CSV and JSON document.

use super::Args;
use crate::error::Failure;
use ginlab::doctor::{Finding, State, worst};
use ginlab::report::Header;
use serde::Serialize;
use std::io::Write;

/// Version of the columns.
const SCHEMA: u32 = 1;

/// Columns of the CSV, which are also the keys of a finding in the JSON document.
const COLUMNS: [&str; 6] = ["host", "check", "state", "looks_at", "found", "mend"];

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    header: &'a Header,
    worst: Option<State>,
    fit: Option<&'a str>,
    findings: &'a [Finding],
}

/// Writes the requested outputs. `fit` is the last line of the text, and a key of the JSON document.
pub fn write(args: &Args, header: &Header, findings: &[Finding], fit: Option<&str>) -> Result<(), Failure> {
    let document = Document { schema: SCHEMA, header, worst: worst(findings), fit, findings };
    let mut text = lines(findings, crate::output::color());
    if let Some(fit) = fit {
        text.push_str(fit);
        text.push('\n');
    }
    args.output.write(header, &COLUMNS, findings, &document, &text)
}

/// Prints the findings as lines only.
pub fn print(findings: &[Finding]) -> Result<(), Failure> {
    let written = ginlab::signals::stdout().write_all(lines(findings, crate::output::color()).as_bytes());
    written.map_err(|error| Failure::Run(format!("cannot write the table to stdout: {error}")))
}

/// Formats a line per check, with the remedy at the end. Lines start with the host if there are several.
fn lines(findings: &[Finding], color: bool) -> String {
    let several = findings.windows(2).any(|pair| pair[0].host != pair[1].host);
    let widest = |text: fn(&Finding) -> &str| findings.iter().map(|finding| text(finding).len()).max().unwrap_or(0);
    let (hosts, checks) = (widest(|finding| &finding.host), widest(|finding| &finding.check));
    let line = |finding: &Finding| {
        let host = if several { format!("{:<hosts$}  ", finding.host) } else { String::new() };
        let state = format!("{:<7}", finding.state);
        let state = match (color, finding.state) {
            (true, State::Fail) => format!("\x1b[31m{state}\x1b[0m"),
            (true, State::Warn) => format!("\x1b[33m{state}\x1b[0m"),
            _ => state,
        };
        let mend = if finding.mend.is_empty() { String::new() } else { format!(" -> {}", finding.mend) };
        format!("{host}{state}  {:<checks$}  {}{mend}\n", finding.check, finding.found)
    };
    findings.iter().map(line).collect()
}
