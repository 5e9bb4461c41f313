//! Row of a domain, with the same columns in CSV and JSON for all providers.

use crate::listing::{Field, JsonObject, entries};
use ginlab::fabric::discover::Provider;
use ginlab::fabric::listing::{Listed, Listing, Reach};
use ginlab::report::Header;
use serde::Serialize;

/// Version of the columns.
const SCHEMA: u32 = 1;

/// One domain.
pub struct EfaRow {
    pub listed: Listed,
    /// Reach of rails that a run opens on it by default: `network`, or `local` for ranks of one machine.
    pub rails: Option<&'static str>,
    /// Reason why the row is shown only with --all.
    pub hidden: Option<String>,
}

impl EfaRow {
    /// Returns a row for each entry of the listing.
    pub fn all(listing: &Listing) -> Vec<EfaRow> {
        let place = |reach| match reach {
            Reach::Network => "network",
            Reach::SameHost => "local",
        };
        let marks = listing.reaches().into_iter().zip(listing.hidden());
        let row = |(listed, (reach, hidden)): (&Listed, (Option<Reach>, Option<String>))| EfaRow {
            listed: listed.clone(),
            rails: reach.map(place),
            hidden,
        };
        listing.domains.iter().zip(marks).map(row).collect()
    }

    pub fn gbits_s(&self) -> Option<f64> {
        self.listed.domain.link_bits_per_second.map(|bits| bits as f64 / 1e9)
    }
}

/// Columns of the CSV, which are also the keys of a row in the JSON document. Names are libfabric's.
pub const FIELDS: [Field<EfaRow>; 29] = [
    ("schema", |_| SCHEMA.into()),
    ("provider", |row| row.listed.domain.provider.clone().into()),
    ("provider_version", |row| row.listed.version.clone().into()),
    ("fabric", |row| row.listed.domain.fabric.clone().into()),
    ("domain", |row| row.listed.domain.name.clone().into()),
    ("rails", |row| row.rails.into()),
    ("address", |row| row.listed.address.clone().into()),
    ("link_gbits_s", |row| row.gbits_s().into()),
    ("pci", |row| row.listed.domain.pci.map(|address| address.to_string()).into()),
    ("numa_node", |row| row.listed.numa_node.into()),
    // PCI address of the nearest GPU.
    ("gpu", |row| row.listed.gpu.map(|address| address.to_string()).into()),
    ("rma_write", |row| row.listed.has_rma().into()),
    ("immediate_bytes", |row| row.listed.domain.immediate_bytes.into()),
    ("hmem", |row| row.listed.cuda_memory.into()),
    ("delivery_complete", |row| row.listed.delivery_complete.into()),
    ("max_message_bytes", |row| row.listed.max_message_bytes.into()),
    ("mr_mode", |row| row.listed.mr_mode.clone().into()),
    ("threading", |row| row.listed.threading.clone().into()),
    ("progress", |row| row.listed.progress.clone().into()),
    ("order", |row| row.listed.order.clone().into()),
    ("queue", |row| row.listed.queue.into()),
    ("endpoint", |row| row.listed.endpoint.clone().into()),
    ("protocol", |row| row.listed.protocol.clone().into()),
    ("device", |row| row.listed.device.clone().into()),
    ("driver", |row| row.listed.driver.clone().into()),
    ("link_state", |row| row.listed.link_state.clone().into()),
    ("mtu_bytes", |row| row.listed.mtu_bytes.into()),
    ("capabilities", |row| row.listed.capabilities.clone().into()),
    ("hidden", |row| row.hidden.clone().into()),
];

/// The JSON document. Lists are JSON arrays.
#[derive(Serialize)]
pub struct EfaDocument<'a> {
    schema: u32,
    header: &'a Header,
    default_provider: Option<&'a str>,
    providers: &'a [Provider],
    pub domains: Vec<JsonObject>,
}

/// Returns the JSON document of these rows.
pub fn document<'a>(header: &'a Header, listing: &'a Listing, rows: &[EfaRow]) -> EfaDocument<'a> {
    EfaDocument {
        schema: SCHEMA,
        header,
        default_provider: listing.default_provider(),
        providers: &listing.providers,
        domains: entries(&FIELDS, rows),
    }
}
