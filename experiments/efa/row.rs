//! A domain as a row: the same columns in CSV and JSON, whatever the provider.

use ginlab::fabric::discover::Provider;
use ginlab::fabric::listing::{Listed, Listing, Reach};
use ginlab::report::Header;
use serde::Serialize;

/// Version of the columns.
const SCHEMA: u32 = 1;

/// One domain. What is not known is null in JSON and empty in CSV; names are libfabric's.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub schema: u32,
    pub provider: String,
    pub provider_version: Option<String>,
    pub fabric: String,
    pub domain: String,
    /// Where a run that may choose opens rails on it: `network`, or `local` for ranks of one machine.
    pub rails: Option<&'static str>,
    pub address: Option<String>,
    pub link_gbits_s: Option<f64>,
    pub pci: Option<String>,
    pub numa_node: Option<u32>,
    /// PCI address of the nearest GPU.
    pub gpu: Option<String>,
    pub rma_write: bool,
    pub immediate_bytes: usize,
    pub hmem: Option<bool>,
    pub delivery_complete: Option<bool>,
    pub max_message_bytes: Option<u64>,
    pub mr_mode: Vec<String>,
    pub threading: Option<String>,
    pub progress: Option<String>,
    pub order: Option<Vec<String>>,
    pub queue: Option<u64>,
    pub endpoint: Option<String>,
    pub protocol: Option<String>,
    pub device: Option<String>,
    pub driver: Option<String>,
    pub link_state: Option<String>,
    pub mtu_bytes: Option<u64>,
    pub capabilities: Vec<String>,
    /// Why the row is shown with --all only.
    pub hidden: Option<String>,
}

impl Row {
    /// A row for each entry of the listing.
    pub fn all(listing: &Listing) -> Vec<Row> {
        let marks = listing.reaches().into_iter().zip(listing.hidden());
        listing.domains.iter().zip(marks).map(|(listed, (reach, hidden))| Row::of(listed, reach, hidden)).collect()
    }

    fn of(listed: &Listed, reach: Option<Reach>, hidden: Option<String>) -> Row {
        let Listed { domain, .. } = listed.clone();
        Row {
            schema: SCHEMA,
            provider: domain.provider,
            provider_version: listed.version.clone(),
            fabric: domain.fabric,
            domain: domain.name,
            rails: reach.map(|reach| match reach {
                Reach::Network => "network",
                Reach::SameHost => "local",
            }),
            address: listed.address.clone(),
            link_gbits_s: domain.link_bits_per_second.map(|bits| bits as f64 / 1e9),
            pci: domain.pci.map(|address| address.to_string()),
            numa_node: listed.numa_node,
            gpu: listed.gpu.map(|address| address.to_string()),
            rma_write: listed.has_rma(),
            immediate_bytes: domain.immediate_bytes,
            hmem: listed.cuda_memory,
            delivery_complete: listed.delivery_complete,
            max_message_bytes: listed.max_message_bytes,
            mr_mode: listed.mr_mode.clone(),
            threading: listed.threading.clone(),
            progress: listed.progress.clone(),
            order: listed.order.clone(),
            queue: listed.queue,
            endpoint: listed.endpoint.clone(),
            protocol: listed.protocol.clone(),
            device: listed.device.clone(),
            driver: listed.driver.clone(),
            link_state: listed.link_state.clone(),
            mtu_bytes: listed.mtu_bytes,
            capabilities: listed.capabilities.clone(),
            hidden,
        }
    }
}

/// A provider with its version.
#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    version: &'a str,
}

/// The JSON document: lists as lists.
#[derive(Serialize)]
pub struct Document<'a> {
    schema: u32,
    header: &'a Header,
    default_provider: Option<&'a str>,
    providers: Vec<Named<'a>>,
    domains: &'a [Row],
}

/// The document of these rows.
pub fn document<'a>(header: &'a Header, listing: &'a Listing, rows: &'a [Row]) -> Document<'a> {
    Document {
        schema: SCHEMA,
        header,
        default_provider: listing.default_provider(),
        providers: listing.providers.iter().map(|Provider { name, version }| Named { name, version }).collect(),
        domains: rows,
    }
}

/// The columns of the CSV, which are the keys of a row of the JSON document.
pub const COLUMNS: [&str; 29] = [
    "schema",
    "provider",
    "provider_version",
    "fabric",
    "domain",
    "rails",
    "address",
    "link_gbits_s",
    "pci",
    "numa_node",
    "gpu",
    "rma_write",
    "immediate_bytes",
    "hmem",
    "delivery_complete",
    "max_message_bytes",
    "mr_mode",
    "threading",
    "progress",
    "order",
    "queue",
    "endpoint",
    "protocol",
    "device",
    "driver",
    "link_state",
    "mtu_bytes",
    "capabilities",
    "hidden",
];
