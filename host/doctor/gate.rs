//! Figures of a machine for the gate of a fleet: each with its limit and whether the machine meets it.
//!
//! A figure that could not be read fails, so that a machine passes the gate only with observed values.

use super::counters;
use super::efa::port_rates;
use super::kernel_log;
use super::machine::{GpuFabric, GpuState, Machine};
use super::nvlink::CHECKSUMS_PER_SECOND;
use super::trial::{BYTES, Trial};
use super::{CheckState, Finding, Severity, fail, of, ok};
use ginlab_base::stats::upper_median;
use ginlab_topology::environment::NicCounters;
use serde::Serialize;
use std::time::Duration;

/// Name of the check that sums up the figures.
pub const CHECK: &str = "gate";

/// Limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The figure must not be lower.
    AtLeast(f64),
    /// The figure must not be higher.
    AtMost(f64),
}

/// A figure of a machine or of one of its devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineFigure {
    /// Check that examines the figure.
    pub check: &'static str,
    /// Device: PCI address of a GPU, or name of a NIC or rail; `machine` for the whole machine.
    pub item: String,
    /// Name of the figure, with its unit.
    pub name: &'static str,
    /// Value; `None` if it could not be read.
    pub value: Option<f64>,
    /// Limit; `None` if the figure is only reported.
    pub limit: Option<Limit>,
    /// `ok`, `fail`, or `skipped` if it could not be read.
    pub state: CheckState,
    /// PCI address of the GPU whose memory was used, for rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

fn figure(
    check: &'static str,
    item: impl ToString,
    name: &'static str,
    value: Option<f64>,
    limit: Option<Limit>,
) -> MachineFigure {
    let kept = |value: f64| match limit {
        Some(Limit::AtLeast(least)) => value >= least,
        Some(Limit::AtMost(most)) => value <= most,
        None => true,
    };
    let state = value.map_or(CheckState::Skipped, |value| if kept(value) { CheckState::Ok } else { CheckState::Fail });
    MachineFigure { check, item: item.to_string(), name, value, limit, state, gpu: None }
}

/// The whole machine, as an item.
const MACHINE: &str = "machine";

/// Returns the figures of a machine whose instance type is known. `at_least` is the minimum ratio of each NIC's
/// loop-back rate to the median of all NICs.
#[must_use]
pub fn figures(machine: &Machine, at_least: f64) -> Vec<MachineFigure> {
    let Some(kind) = machine.kind() else { return Vec::new() };
    let count = |count: usize| machine.bus_unseen().is_none().then_some(count as f64);
    let least = |number: usize| Some(Limit::AtLeast(number as f64));
    let cards = machine.expected_cards().unwrap_or(kind.cards);
    let mut all = vec![
        figure("gpu", MACHINE, "gpus", count(machine.gpus().len()), least(kind.gpus)),
        figure("efa-devices", MACHINE, "efa_devices", count(machine.efa_cards().len()), least(cards)),
    ];
    all.extend(of_gpus(machine));
    all.extend(of_ports(machine));
    all.extend(loop_back(machine, at_least));
    all
}

fn of_gpus(machine: &Machine) -> Vec<MachineFigure> {
    let none = Some(Limit::AtMost(0.0));
    let read = machine.asked.xids.as_ref().and_then(|read| read.as_ref().ok());
    let grave = |lines: &Vec<String>| {
        let xids = kernel_log::xids(lines);
        xids.iter().filter(|xid| kernel_log::state_of(xid.action) == CheckState::Fail).count() as f64
    };
    let mut all = vec![figure("xid", MACHINE, "xid_errors_to_act_on", read.map(grave), none)];
    let Some(Ok(gpus)) = &machine.asked.gpus else {
        all.push(figure("gpu", MACHINE, "ecc_uncorrected", None, none));
        return all;
    };
    let most_links = gpus.iter().map(|gpu| gpu.links).max().unwrap_or(0);
    for gpu in gpus {
        let rows = gpu.remapped;
        let flag = |value: bool| f64::from(u8::from(value));
        let mut push =
            |check, name, value: Option<f64>, limit| all.push(figure(check, gpu.address, name, value, limit));
        push("gpu", "ecc_uncorrected", gpu.ecc_uncorrected.map(|count| count as f64), none);
        push("gpu", "rows_remapped_correctable", rows.map(|rows| rows.correctable as f64), None);
        push("gpu", "rows_remapped_uncorrectable", rows.map(|rows| rows.uncorrectable as f64), None);
        push("gpu", "row_remapping_failed", rows.map(|rows| flag(rows.failed)), none);
        push("gpu", "row_remapping_pending", rows.map(|rows| flag(rows.pending)), none);
        push("nvlink", "nvlinks_up", Some(f64::from(gpu.links_up)), Some(Limit::AtLeast(f64::from(most_links))));
        if let Some(fabric) = gpu.fabric {
            push("nvlink", "fabric_not_ready", Some(flag(fabric != GpuFabric::Ready)), none);
        }
        if most_links > 0 {
            let grown = grown(machine, gpu);
            push("nvlink", "nvlink_replays", grown.map(|(errors, _)| errors.replays as f64), none);
            push("nvlink", "nvlink_recoveries", grown.map(|(errors, _)| errors.recoveries as f64), none);
            let rate = grown.map(|(errors, apart)| errors.checksums as f64 / apart.as_secs_f64().max(1.0));
            push("nvlink", "nvlink_checksum_errors_per_s", rate, Some(Limit::AtMost(CHECKSUMS_PER_SECOND)));
        }
    }
    all
}

/// Returns the growth of a GPU's link errors between the two queries, and the time between them.
fn grown(machine: &Machine, gpu: &GpuState) -> Option<(super::LinkErrors, Duration)> {
    let (apart, later) = machine.asked.gpus_later.as_ref()?;
    let later = later.iter().find(|state| state.address == gpu.address)?;
    Some((later.link_errors.since(&gpu.link_errors), *apart))
}

fn of_ports(machine: &Machine) -> Vec<MachineFigure> {
    let rates = port_rates(machine);
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mut all = Vec::new();
    for name in machine.efa_devices() {
        let rate = rates.iter().find(|(known, _)| *known == name).map(|(_, rate)| *rate);
        all.push(figure("efa-links", &name, "port_gbits_s", rate, Some(Limit::AtLeast(most))));
    }
    let counters = NicCounters::read(machine.root());
    let ports = counters::ports(machine, &counters);
    for rate in counters::rates(&counters, &ports) {
        let name = if rate.counter == "rx_drops" { "dropped_share" } else { "retransmitted_share" };
        all.push(figure("counters", &rate.port, name, Some(rate.share()), Some(Limit::AtMost(counters::LIMIT))));
    }
    for (port, name, count) in counters::events(&counters, &ports) {
        // A peer that was killed leaves the other events.
        let limit = (name == "impaired_remote_conn_events").then_some(Limit::AtMost(0.0));
        all.push(figure("counters", port, name, Some(count as f64), limit));
    }
    all
}

/// Returns the rate of a write of each NIC to itself, from the memory of the nearest GPU if it can access it.
fn loop_back(machine: &Machine, at_least: f64) -> Vec<MachineFigure> {
    let trials = machine.asked.trials.as_deref().unwrap_or_default();
    let has_gpu = trials.iter().any(|trial| trial.gpu);
    // Other trials do not belong to a NIC.
    let of_nic = |trial: &&Trial| trial.gpu == has_gpu && (trial.fastest.is_some() || trial.gpu);
    let rate = |trial: &Trial| trial.fastest.map(|time| BYTES as f64 / time.as_secs_f64() / 1e9);
    let rates: Vec<f64> = trials.iter().filter(of_nic).filter_map(rate).collect();
    let Some(median) = upper_median(&rates) else {
        return vec![figure("smoke", MACHINE, "loop_back_gbytes_s", None, None)];
    };
    let of_trial = |trial: &Trial| {
        let limit = Some(Limit::AtLeast(at_least * median));
        // A trial that failed has no rate. This is worse than a rate that was not read.
        let rate = rate(trial).unwrap_or(0.0);
        let gpu = trial.device.map(|address| address.to_string());
        MachineFigure { gpu, ..figure("smoke", &trial.rail, "loop_back_gbytes_s", Some(rate), limit) }
    };
    trials.iter().filter(of_nic).map(of_trial).collect()
}

/// Sums up the figures as a finding.
#[must_use]
pub fn finding(host: &str, figures: &[MachineFigure]) -> Finding {
    let line = |figure: &MachineFigure| {
        let value = figure.value.map_or("not read".to_owned(), |value| format!("{value:.6}"));
        let value =
            if value.contains('.') { value.trim_end_matches('0').trim_end_matches('.').to_owned() } else { value };
        let limit = match figure.limit {
            Some(Limit::AtLeast(least)) => format!(" (at least {least:.6})"),
            Some(Limit::AtMost(most)) => format!(" (at most {most:.6})"),
            None => String::new(),
        };
        let limit = limit.replace(".000000)", ")");
        format!("{} {} {value}{limit}", figure.item, figure.name)
    };
    let wrong: Vec<String> = figures.iter().filter(|figure| figure.state == CheckState::Fail).map(line).collect();
    let unread: Vec<String> = figures.iter().filter(|figure| figure.state == CheckState::Skipped).map(line).collect();
    let lines: Vec<String> = wrong.iter().chain(&unread).take(6).cloned().collect();
    let said = match (wrong.len(), unread.len()) {
        (0, 0) => ok(format!("{} figures within their limits", figures.len())),
        (0, unread) => fail(
            format!("{unread} of {} figures were not read: {}", figures.len(), lines.join("; ")),
            "run as root, without --no-smoke and --only, and with the NVIDIA driver",
        ),
        (wrong, unread) => fail(
            format!(
                "{wrong} of {} figures exceed their limit, {unread} were not read: {}",
                figures.len(),
                lines.join("; ")
            ),
            "see the checks of the same devices above; all figures: --json",
        ),
    };
    let finding = of(host, CHECK, "figures of the machine, compared with their limits", said);
    let severity = if wrong.is_empty() { finding.severity.min(Severity::Configure) } else { finding.severity };
    Finding { severity, ..finding }
}
