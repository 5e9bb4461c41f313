//! `ginlab efa`: lists the domains on which rails can be opened, EFA devices first, of this machine or of a saved dump.

mod row;
mod table;

use crate::error::Failure;
use crate::listing::{ListingArgs, recorded, table};
use crate::program::{CommandSpec, program};
use ginlab::fabric::filter;
use ginlab::fabric::listing::Listing;
use ginlab::versions::Versions;
use row::EfaRow;
use std::path::PathBuf;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "efa",
    "List the domains on which rails can be opened: providers, addresses, capabilities",
    EfaArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab efa                          list the domains of this machine, EFA devices first
  ginlab efa --provider tcp --all     list every entry of one provider, with the reason for hiding it otherwise
  ginlab efa --json - | jq '.domains[] | select(.provider == \"efa\") | .pci'   select fields of the JSON document
  ginlab efa --from tests/fixtures/p5 read saved `fi_info -v` output of another machine";

/// Options of `ginlab efa`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EfaArgs {
    /// Read a dump instead of this machine: a file written by `fi_info -v`, or a directory with fi_info.yaml (and
    /// lspci.txt, ls_sys_bus_pci_devices.txt)
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Show only this provider: a full name (tcp;ofi_rxm) or a part of one (tcp)
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Show all entries, including datagram and message endpoints and further paths to the same address or device
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: ListingArgs,
}

fn run(args: &EfaArgs) -> Result<(), Failure> {
    args.output.check()?;
    let (mut header, mut listing) = match &args.from {
        Some(path) => {
            (recorded(path), Listing::from_dump(path).map_err(|error| Failure::Usage(format!("--from {error}")))?)
        }
        None => (Versions::header(), Listing::here()?),
    };
    let software = |label| format!("the EFA devices are software NICs; runs report them as {label}");
    header.notes(findings(&listing, args.from.is_some())).notes(ginlab::fabric::soft::label().map(software));
    if let Some(provider) = &args.provider {
        let provider = if ginlab::fabric::soft::is_asked(provider) { "efa" } else { provider };
        listing.keep(provider).map_err(|text| Failure::Usage(format!("--provider: {text}")))?;
    }
    let mut rows = EfaRow::all(&listing);
    let found = rows.len();
    rows.retain(|row| args.all || row.hidden.is_none());
    if rows.len() < found {
        header.note(format!(
            "{} further entries are hidden (other endpoints, other paths to the same address or device); --all shows \
             them",
            found - rows.len()
        ));
    }
    if rows.is_empty() {
        let of = args.provider.as_ref().map(|name| format!(" of the provider {name}")).unwrap_or_default();
        header.note(format!("no domains{of} found"));
    }

    let document = row::document(&header, &listing, &rows);
    args.output.write(
        &header,
        &row::FIELDS.map(|(key, _)| key),
        &document.domains,
        &document,
        &table(&table::COLUMNS, &rows),
    )
}

/// Returns the notes of the header.
fn findings(listing: &Listing, dump: bool) -> Vec<String> {
    let mut findings = Vec::new();
    let cards = listing.domains.iter().filter(|listed| listed.is_efa() && listed.takes_rails()).count();
    let place = if dump { "in this dump" } else { "here" };
    findings.push(match cards {
        0 => format!("no EFA device {place}"),
        count => format!("rails can be opened on {count} EFA domains"),
    });
    findings.push(match listing.default_provider() {
        Some(name) => format!("the default provider is {name}"),
        None => format!("there is no default provider {place}"),
    });
    let of_provider = |name: &str| listing.domains.iter().filter(|listed| listed.is_of(name)).count();
    let providers = listing
        .providers
        .iter()
        .map(|provider| format!("{} {} ({})", provider.name, provider.version, of_provider(&provider.name)));
    findings.push(format!("providers and their number of entries: {}", providers.collect::<Vec<_>>().join(", ")));
    if let Some(value) = std::env::var(filter::VARIABLE).ok().filter(|_| !dump) {
        let hides = if value.starts_with('^') { "hides the providers after ^" } else { "hides other providers" };
        findings.push(format!("{}={value} is set and {hides}", filter::VARIABLE));
    }
    findings
}
