//! `ginlab efa`: what there is to open rails on, EFA devices first, of this machine or of a saved dump.

mod row;
mod table;

use crate::error::Failure;
use crate::listing::{ListingArgs, recorded, table};
use crate::program::{Program, program};
use ginlab::fabric::listing::Listing;
use ginlab::versions::Versions;
use row::Row;
use std::path::PathBuf;

pub const PROGRAMS: &[Program] = &[program!(
    "efa",
    "List what this machine (or a saved dump of one) can open rails on: providers, domains, addresses, capabilities",
    Args,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab efa                          what this machine has; EFA devices first
  ginlab efa --provider tcp --all     every entry of one provider, with the reason why it is hidden otherwise
  ginlab efa --json - | jq '.domains[] | select(.provider == \"efa\") | .pci'
  ginlab efa --from tests/fixtures/p5 a machine of which somebody has saved `fi_info -v`";

/// Options of `ginlab efa`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read a dump and not this machine: a file as `fi_info -v` writes it, or a folder with fi_info.yaml (and lspci.txt,
    /// ls_sys_bus_pci_devices.txt)
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Only this provider: a full name (tcp;ofi_rxm) or a part of one (tcp)
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Show all entries: also datagram and message endpoints, and further ways to the same address or device
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: ListingArgs,
}

/// Lists.
fn run(args: &Args) -> Result<(), Failure> {
    args.output.check()?;
    let (mut header, mut listing) = match &args.from {
        Some(path) => {
            (recorded(path), Listing::from_dump(path).map_err(|error| Failure::Usage(format!("--from {error}")))?)
        }
        None => (Versions::header(), Listing::here()?),
    };
    let software = |label| format!("the EFA cards are software: a run calls them {label}");
    header.notes(findings(&listing, args.from.is_some())).notes(ginlab::fabric::soft::label().map(software));
    if let Some(provider) = &args.provider {
        let provider = if ginlab::fabric::soft::is_asked(provider) { "efa" } else { provider };
        listing.keep(provider).map_err(|text| Failure::Usage(format!("--provider: {text}")))?;
    }
    let mut rows = Row::all(&listing);
    let found = rows.len();
    rows.retain(|row| args.all || row.hidden.is_none());
    if rows.len() < found {
        header.note(format!(
            "{} further entries are hidden (other endpoints, further ways to the same address or device); --all shows them",
            found - rows.len()
        ));
    }
    if rows.is_empty() {
        let of = args.provider.as_ref().map(|name| format!(" of the provider {name}")).unwrap_or_default();
        header.note(format!("there is no domain{of} to show"));
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

/// What a reader wants to know first.
fn findings(listing: &Listing, dump: bool) -> Vec<String> {
    let mut findings = Vec::new();
    let cards = listing.domains.iter().filter(|listed| listed.is_efa() && listed.takes_rails()).count();
    let place = if dump { "in this dump" } else { "here" };
    findings.push(match cards {
        0 => format!("no EFA device is {place}"),
        count => format!("{count} EFA domains take rails"),
    });
    findings.push(match listing.default_provider() {
        Some(name) => format!("a run that names no provider takes {name}"),
        None => format!("no provider {place} takes rails of a run that names none"),
    });
    let of_provider = |name: &str| listing.domains.iter().filter(|listed| listed.is_of(name)).count();
    let providers = listing
        .providers
        .iter()
        .map(|provider| format!("{} {} ({})", provider.name, provider.version, of_provider(&provider.name)));
    findings.push(format!("providers, with their entries: {}", providers.collect::<Vec<_>>().join(", ")));
    if let Some(value) = std::env::var("FI_PROVIDER").ok().filter(|_| !dump) {
        findings.push(format!("FI_PROVIDER={value} is set and hides other providers"));
    }
    findings
}
