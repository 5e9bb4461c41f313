//! Row of a rail of a rank, the JSON document and the table.

use super::card::{BootstrapRankInfo, RailCard};
use crate::all2all::pairs;
use crate::listing::{Field, JsonObject, ListingColumn, entries};
use ginlab::bootstrap::Member;
use ginlab::fabric::RemoteRegion;
use ginlab::measure::stats::Summary;
use ginlab::report::Header;
use serde::{Deserialize, Serialize};

/// Version of the columns.
const SCHEMA: u32 = 1;

/// Times of one rank on its own clock, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootstrapTimes {
    /// Time from the start of the rank until all ranks had connected.
    pub meet: f64,
    /// Time to open the rank's rails and register memory.
    pub open: f64,
    /// Time of each exchange of all ranks' addresses and keys.
    pub exchanges: Vec<f64>,
}

/// A rail of a rank.
pub struct BootstrapRow {
    rank: usize,
    member: Member,
    local_rank: usize,
    number: usize,
    provider: String,
    rail: RailCard,
    /// Descriptor of the registered memory.
    page: RemoteRegion,
    /// Ranks to which this rank's first whole message uses this rail.
    writes_to: Vec<usize>,
    times: BootstrapTimes,
    /// Bytes of one exchange.
    exchange_bytes: usize,
    exchange: Option<Summary>,
}

/// Columns of the CSV, which are also the keys of a rail in the JSON document.
pub const FIELDS: [Field<BootstrapRow>; 21] = [
    ("schema", |_| SCHEMA.into()),
    ("rank", |row| row.rank.into()),
    ("host", |row| row.member.host.clone().into()),
    ("pid", |row| row.member.pid.into()),
    ("local_rank", |row| row.local_rank.into()),
    ("rail", |row| row.number.into()),
    ("provider", |row| row.provider.clone().into()),
    ("provider_version", |row| row.rail.provider_version.clone().into()),
    ("fabric", |row| row.rail.fabric.clone().into()),
    ("domain", |row| row.rail.domain.clone().into()),
    ("address", |row| row.rail.address_text.clone().into()),
    ("link_gbits_s", |row| row.gbits_s().into()),
    // A string, because most JSON readers round integers above 2^53.
    ("key", |row| format!("{:#x}", row.page.key).into()),
    ("base", |row| row.page.base.into()),
    ("writes_to", |row| row.writes_to.clone().into()),
    ("meet_us", |row| tenths(row.times.meet).into()),
    ("open_us", |row| tenths(row.times.open).into()),
    ("exchange_bytes", |row| row.exchange_bytes.into()),
    ("exchange_us_min", |row| row.exchange_us(|summary| summary.min).into()),
    ("exchange_us_p50", |row| row.exchange_us(|summary| summary.p50).into()),
    ("exchange_us_p99", |row| row.exchange_us(|summary| summary.p99).into()),
];

/// Rounds to 0.1 us. Smaller differences are noise of the network.
fn tenths(us: f64) -> f64 {
    (us * 10.0).round() / 10.0
}

impl BootstrapRow {
    /// Returns all rails of all ranks, ordered by rank.
    pub fn all(
        provider: &str,
        cards: &[BootstrapRankInfo],
        members: &[Member],
        times: &[BootstrapTimes],
        exchange_bytes: usize,
    ) -> Vec<BootstrapRow> {
        let ranks = cards.len();
        let of_rank = |(rank, ((card, member), times)): (usize, ((&BootstrapRankInfo, &Member), &BootstrapTimes))| {
            let pages = card.offer.regions.first().map_or(&[][..], Vec::as_slice);
            let row = |(number, rail): (usize, &RailCard)| BootstrapRow {
                rank,
                member: member.clone(),
                local_rank: card.local_rank,
                number,
                provider: provider.to_owned(),
                rail: rail.clone(),
                page: pages.get(number).copied().unwrap_or_default(),
                writes_to: pairs::targets(rank, ranks)
                    .filter(|to| pairs::rail(0, rank, *to, ranks, card.rails.len()) == number)
                    .collect(),
                times: times.clone(),
                exchange_bytes,
                exchange: Summary::of(&times.exchanges),
            };
            card.rails.iter().enumerate().map(row).collect::<Vec<_>>()
        };
        cards.iter().zip(members).zip(times).enumerate().flat_map(of_rank).collect()
    }

    fn gbits_s(&self) -> Option<f64> {
        self.rail.link_bits_per_second.map(|bits| bits as f64 / 1e9)
    }

    fn exchange_us(&self, part: fn(&Summary) -> f64) -> f64 {
        tenths(self.exchange.as_ref().map_or(0.0, part))
    }
}

/// Rail of the first message of an ordered pair of ranks.
#[derive(Serialize)]
struct Pair {
    from: usize,
    to: usize,
    rail: usize,
}

/// The JSON document.
#[derive(Serialize)]
pub struct BootstrapDocument<'a> {
    schema: u32,
    header: &'a Header,
    bootstrap: String,
    ranks: usize,
    pub rails: Vec<JsonObject>,
    pairs: Vec<Pair>,
    /// Times of every exchange of every rank.
    exchanges_us: Vec<Vec<f64>>,
}

impl<'a> BootstrapDocument<'a> {
    pub fn new(
        header: &'a Header,
        bootstrap: String,
        cards: &[BootstrapRankInfo],
        times: &[BootstrapTimes],
        rails: &[BootstrapRow],
    ) -> Self {
        let ranks = cards.len();
        let of_rank = |from: usize| {
            pairs::targets(from, ranks).map(move |to| {
                let rail = pairs::rail(0, from, to, ranks, cards[from].rails.len());
                Pair { from, to, rail }
            })
        };
        BootstrapDocument {
            schema: SCHEMA,
            header,
            bootstrap,
            ranks,
            rails: entries(&FIELDS, rails),
            pairs: (0..ranks).flat_map(of_rank).collect(),
            exchanges_us: times.iter().map(|times| times.exchanges.iter().map(|us| tenths(*us)).collect()).collect(),
        }
    }
}

/// The columns of the table.
pub const TABLE: [ListingColumn<BootstrapRow>; 13] = [
    ("rank", "", |row| row.rank.to_string()),
    ("host", "", |row| row.member.host.clone()),
    ("pid", "", |row| row.member.pid.to_string()),
    ("rail", "", |row| row.number.to_string()),
    ("provider", "", |row| row.provider.clone()),
    ("fabric", "", |row| row.rail.fabric.clone()),
    ("domain", "", |row| row.rail.domain.clone()),
    ("address", "", |row| row.rail.address_text.clone()),
    ("Gb/s", "", |row| row.gbits_s().map(|rate| rate.to_string()).unwrap_or_default()),
    ("key", "", |row| format!("{:#x}", row.page.key)),
    ("writes to", "rank", |row| row.writes_to.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    ("opened in", "us", |row| once(row, tenths(row.times.open))),
    ("exchange", "us", |row| once(row, row.exchange_us(|summary| summary.p50))),
];

/// Returns a cell with a value of the whole rank, shown only in the row of its first rail.
fn once(row: &BootstrapRow, us: f64) -> String {
    if row.number == 0 { us.to_string() } else { String::new() }
}
