//! Rates of rails in recorded runs, compared with those expected of the instance type.

use ginlab::doctor::instances::{Instance, plain};
use ginlab::report::Key;
use ginlab::report::chart::FileRecord;
use ginlab::report::page::Expected;
use ginlab::report::run::Run;
use std::collections::BTreeMap;

/// Smallest writes that reach the expected rates.
const LARGE: f64 = (1 << 20) as f64;

/// Returns the slowest rail and the slowest GPU of each host in the runs of `write --each-rail`, with the expected
/// figures. `instance` replaces the instance types in the headers of the runs.
pub fn of(runs: &[Run], instance: Option<&str>) -> Vec<Expected> {
    runs.iter().flat_map(|run| of_run(run, instance).unwrap_or_default()).collect()
}

/// Formats a figure as one line.
pub fn line(one: &Expected) -> String {
    let Expected { instance, host, what, value, expected, unit, .. } = one;
    let verdict = if one.is_low() { "low" } else { "ok" };
    format!("{instance}: {host}: {what}: {value:.1} of {expected:.1} {unit}, {:.0} %: {verdict}", one.percent())
}

/// `None` if the run has no rates of rails, or nothing is known about its instance type.
fn of_run(run: &Run, instance: Option<&str>) -> Option<Vec<Expected>> {
    let field = |row, column: &str| run.records.field(row, column);
    let number = |row, column: &str| run.records.number(row, column);
    let rows = run.records.rows().iter().filter(|row| {
        let names = ["experiment", "case", "status"].map(|column| field(row, column));
        names == ["write", "rail", "ok"] && number(row, "size_bytes").is_some_and(|bytes| bytes >= LARGE)
    });
    let rows: Vec<&FileRecord> = rows.collect();
    let name = instance.map(str::to_owned).or_else(|| run.fact(Key::Instance))?;
    let profile = Instance::named(plain(&name))?.profile().filter(|profile| profile.rdma_write.value > 0.0)?;
    let rate = profile.line_rate_gbps.value * profile.peak_share.value;
    let largest = rows.iter().filter_map(|row| number(row, "size_bytes")).fold(LARGE, f64::max);
    // Slowest rail of each host, and the sum of the rails of each GPU.
    let mut alone: BTreeMap<&str, (f64, &FileRecord, usize)> = BTreeMap::new();
    let mut together: BTreeMap<(&str, &str), (f64, usize)> = BTreeMap::new();
    for row in rows.into_iter().filter(|row| number(row, "size_bytes") == Some(largest)) {
        let Some(gbits) = number(row, "bandwidth_gbytes_s").map(|gbytes| 8.0 * gbytes) else { continue };
        let host = field(row, "node");
        if field(row, "mode") == "alone" {
            let slowest = alone.entry(host).or_insert((gbits, row, 0));
            *slowest =
                if gbits < slowest.0 { (gbits, row, slowest.2 + 1) } else { (slowest.0, slowest.1, slowest.2 + 1) };
        } else {
            let sum = together.entry((host, field(row, "rank"))).or_default();
            *sum = (sum.0 + gbits, sum.1 + 1);
        }
    }
    let make = |host: &str, what: String, value: f64, expected: f64, unit| Expected {
        instance: name.clone(),
        host: host.to_owned(),
        what,
        value,
        expected,
        unit,
        unreal: run.unreal().into_iter().next(),
        file: run.name.clone(),
    };
    let mut found = Vec::new();
    for (host, (gbits, row, count)) in &alone {
        let what = format!("slowest of {count} rails ({} of rank {})", field(row, "domain"), field(row, "rank"));
        found.push(make(host, what, *gbits, rate, "Gb/s"));
        // GPUs that share a card get a part of its rate.
        let share = profile.cards_per_gpu().min(1.0);
        let of_host = together.iter().filter(|((of, _), (_, rails))| of == host && *rails > 1);
        let slowest = of_host.min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        if let Some(((_, rank), (sum, rails))) = slowest {
            let what = format!("{rails} rails of a GPU (slowest: rank {rank})");
            found.push(make(host, what, sum / 8.0, *rails as f64 * rate * share / 8.0, "GB/s"));
        }
    }
    Some(found)
}
