//! A rail of a rank as a row, and the whole as a document and as a table.

use super::card::Card;
use crate::listing::{self, Column};
use ginlab::bootstrap::Member;
use ginlab::fabric::pairs;
use ginlab::measure::stats::Summary;
use ginlab::report::Header;
use serde::{Deserialize, Serialize};

/// Version of the columns.
const SCHEMA: u32 = 1;

/// How long a rank took, on its own clock, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Times {
    /// From its start until all ranks had met.
    pub meet: f64,
    /// To open its rails and register memory.
    pub open: f64,
    /// Each exchange of all ranks' addresses and keys.
    pub exchanges: Vec<f64>,
}

/// The columns of a rail of a rank. What is not known is null in JSON and empty in CSV.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    schema: u32,
    rank: usize,
    host: String,
    pid: u32,
    local_rank: usize,
    rail: usize,
    provider: String,
    provider_version: String,
    fabric: String,
    domain: String,
    address: String,
    link_gbits_s: Option<f64>,
    key: u64,
    base: u64,
    /// The ranks to which this rank's first whole message goes by this rail.
    writes_to: Vec<usize>,
    meet_us: f64,
    open_us: f64,
    exchange_bytes: usize,
    exchange_us_min: f64,
    exchange_us_p50: f64,
    exchange_us_p99: f64,
}

pub const COLUMNS: [&str; 21] = [
    "schema",
    "rank",
    "host",
    "pid",
    "local_rank",
    "rail",
    "provider",
    "provider_version",
    "fabric",
    "domain",
    "address",
    "link_gbits_s",
    "key",
    "base",
    "writes_to",
    "meet_us",
    "open_us",
    "exchange_bytes",
    "exchange_us_min",
    "exchange_us_p50",
    "exchange_us_p99",
];

/// Tenths of a microsecond: the clock tells more, the network does not.
fn tenths(us: f64) -> f64 {
    (us * 10.0).round() / 10.0
}

impl Row {
    /// All rails of all ranks, by rank.
    pub fn all(provider: &str, cards: &[Card], members: &[Member], times: &[Times], exchange_bytes: usize) -> Vec<Row> {
        let ranks = cards.len();
        let of_rank = |(rank, ((card, member), times)): (usize, ((&Card, &Member), &Times))| {
            let exchange = Summary::of(&times.exchanges);
            let (meet_us, open_us) = (tenths(times.meet), tenths(times.open));
            let part = |part: fn(&Summary) -> f64| tenths(exchange.as_ref().map_or(0.0, part));
            let page = |rail: usize| card.offer.regions.first().and_then(|rails| rails.get(rail)).copied();
            let row = |(number, rail): (usize, &super::card::RailCard)| Row {
                schema: SCHEMA,
                rank,
                host: member.host.clone(),
                pid: member.pid,
                local_rank: card.local_rank,
                rail: number,
                provider: provider.to_owned(),
                provider_version: rail.provider_version.clone(),
                fabric: rail.fabric.clone(),
                domain: rail.domain.clone(),
                address: rail.address_text.clone(),
                link_gbits_s: rail.link_bits_per_second.map(|bits| bits as f64 / 1e9),
                key: page(number).map_or(0, |page| page.key),
                base: page(number).map_or(0, |page| page.base),
                writes_to: pairs::targets(rank, ranks)
                    .filter(|to| pairs::rail(0, rank, *to, ranks, card.rails.len()) == number)
                    .collect(),
                meet_us,
                open_us,
                exchange_bytes,
                exchange_us_min: part(|summary| summary.min),
                exchange_us_p50: part(|summary| summary.p50),
                exchange_us_p99: part(|summary| summary.p99),
            };
            card.rails.iter().enumerate().map(row).collect::<Vec<_>>()
        };
        cards.iter().zip(members).zip(times).enumerate().flat_map(of_rank).collect()
    }
}

/// The rail of the first message of one ordered pair.
#[derive(Serialize)]
struct Pair {
    from: usize,
    to: usize,
    rail: usize,
}

/// The JSON document.
#[derive(Serialize)]
pub struct Document<'a> {
    schema: u32,
    header: &'a Header,
    bootstrap: String,
    ranks: usize,
    rails: &'a [Row],
    pairs: Vec<Pair>,
    /// Every exchange of every rank.
    exchanges_us: Vec<Vec<f64>>,
}

impl<'a> Document<'a> {
    pub fn new(header: &'a Header, bootstrap: String, cards: &[Card], times: &[Times], rails: &'a [Row]) -> Self {
        let ranks = cards.len();
        let of_rank = |from: usize| {
            pairs::targets(from, ranks).map(move |to| {
                let rail = pairs::rail(0, from, to, ranks, cards[from].rails.len());
                Pair { from, to, rail }
            })
        };
        Document {
            schema: SCHEMA,
            header,
            bootstrap,
            ranks,
            rails,
            pairs: (0..ranks).flat_map(of_rank).collect(),
            exchanges_us: times.iter().map(|times| times.exchanges.iter().map(|us| tenths(*us)).collect()).collect(),
        }
    }
}

const TABLE: [Column<Row>; 13] = [
    ("rank", "", |row| row.rank.to_string()),
    ("host", "", |row| row.host.clone()),
    ("pid", "", |row| row.pid.to_string()),
    ("rail", "", |row| row.rail.to_string()),
    ("provider", "", |row| row.provider.clone()),
    ("fabric", "", |row| row.fabric.clone()),
    ("domain", "", |row| row.domain.clone()),
    ("address", "", |row| row.address.clone()),
    ("Gb/s", "", |row| row.link_gbits_s.map(|rate| rate.to_string()).unwrap_or_default()),
    ("key", "", |row| format!("{:#x}", row.key)),
    ("writes to", "rank", |row| row.writes_to.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    ("opened in", "us", |row| once(row, row.open_us)),
    ("exchange", "us", |row| once(row, row.exchange_us_p50)),
];

/// What is the same for all rails of a rank stands beside its first one.
fn once(row: &Row, us: f64) -> String {
    if row.rail == 0 { us.to_string() } else { String::new() }
}

/// The table.
pub fn table(rows: &[Row]) -> String {
    listing::table(&TABLE, rows)
}
