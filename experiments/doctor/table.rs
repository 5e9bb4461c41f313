//! Output of findings as lines, CSV and JSON document.

use super::DoctorArgs;
use crate::error::Failure;
use ginlab::doctor::gate::MachineFigure;
use ginlab::doctor::tournament::TournamentVerdict;
use ginlab::doctor::{CheckState, Finding, Severity, worst};
use ginlab::report::Header;
use serde::Serialize;
use std::io::Write;

/// Version of the columns.
const SCHEMA: u32 = 2;

/// Columns of the CSV, which are also the keys of a finding in the JSON document.
const COLUMNS: [&str; 7] = ["host", "check", "state", "looks_at", "found", "mend", "severity"];

/// Results in addition to the findings, which only some runs have.
#[derive(Clone, Debug, Default, Serialize)]
pub struct More {
    /// Last line of the text.
    pub fit: Option<String>,
    /// Instance type and id, if they are known.
    pub instance: Option<InstanceName>,
    /// Figures of `--gate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<Vec<MachineFigure>>,
    /// Rates of `--rates`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<TournamentVerdict>,
}

/// Type and id of an EC2 instance.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceName {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub id: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    header: &'a Header,
    worst: Option<CheckState>,
    severity: Severity,
    #[serde(flatten)]
    more: &'a More,
    findings: &'a [Finding],
}

/// Writes the requested outputs.
pub fn write(args: &DoctorArgs, header: &Header, findings: &[Finding], more: &More) -> Result<(), Failure> {
    let severity = findings.iter().map(|finding| finding.severity).max().unwrap_or_default();
    let document = Document { schema: SCHEMA, header, worst: worst(findings), severity, more, findings };
    let mut text = lines(findings, crate::output::color());
    if let Some(fit) = &more.fit {
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

/// Formats a line per check, with the remedy at the end. Lines start with the host if there are several hosts.
fn lines(findings: &[Finding], color: bool) -> String {
    let several = findings.windows(2).any(|pair| pair[0].host != pair[1].host);
    let widest = |text: fn(&Finding) -> &str| findings.iter().map(|finding| text(finding).len()).max().unwrap_or(0);
    let (hosts, checks) = (widest(|finding| &finding.host), widest(|finding| &finding.check));
    let line = |finding: &Finding| {
        let host = if several { format!("{:<hosts$}  ", finding.host) } else { String::new() };
        let state = format!("{:<7}", finding.state);
        let state = match (color, finding.state) {
            (true, CheckState::Fail) => format!("\x1b[31m{state}\x1b[0m"),
            (true, CheckState::Warn) => format!("\x1b[33m{state}\x1b[0m"),
            _ => state,
        };
        let mend = if finding.mend.is_empty() { String::new() } else { format!(" -> {}", finding.mend) };
        format!("{host}{state}  {:<checks$}  {}{mend}\n", finding.check, finding.found)
    };
    findings.iter().map(line).collect()
}
