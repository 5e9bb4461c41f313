//! Counters of the EFA devices: their ratios to packets since the devices came up, and their growth during the trials.

use super::efa::needed;
use super::machine::Machine;
use super::{Checked, ok, skipped, warn};
use ginlab_topology::environment::NicCounters;

/// Counters of failed packets, each with the counter of all packets.
const RATES: [(&str, &str); 2] = [("retrans_pkts", "tx_pkts"), ("rx_drops", "rx_pkts")];

/// Counters of events that do not occur on a healthy fabric while a connection is used. The last one: "SRD connections
/// entered an impaired state, resulting in a reduced throughput rate limit" (awslabs/awsome-distributed-ai #885).
const EVENTS: [&str; 3] = ["retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"];

/// Minimum ratio of drops or retransmissions to packets that causes a warning. The value is a choice, because no limit
/// has been published.
pub(super) const LIMIT: f64 = 1e-3;

/// A counter and the corresponding number of packets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rate {
    /// Port, for example `rdmap79s0/1`.
    pub port: String,
    pub counter: &'static str,
    pub count: u64,
    /// Number of packets; `None` if the device does not report it.
    pub packets: Option<u64>,
}

impl Rate {
    /// Returns the ratio to the number of packets; 1 if that number is unknown.
    pub fn share(&self) -> f64 {
        match (self.count, self.packets) {
            (0, _) => 0.0,
            (count, Some(packets)) if packets > 0 => count as f64 / packets as f64,
            _ => 1.0,
        }
    }

    fn text(&self) -> String {
        let packets = self.packets.map_or("an unknown number of".to_owned(), |packets| packets.to_string());
        let share = self.share() * 1e6;
        format!("{} {} {} of {packets} packets ({share:.1} per million)", self.port, self.counter, self.count)
    }
}

/// Returns the names of the ports of EFA devices; of all RDMA devices if there are none.
pub(super) fn ports(machine: &Machine, counters: &NicCounters) -> Vec<String> {
    let efa = machine.efa_devices();
    let of_efa = |port: &&str| {
        let device = port.split_once('/').map(|(device, _)| device);
        device.is_some_and(|device| efa.is_empty() || efa.iter().any(|name| name == device))
    };
    counters.devices().filter(of_efa).map(str::to_owned).collect()
}

/// Returns the rates of the ports.
pub(super) fn rates(counters: &NicCounters, ports: &[String]) -> Vec<Rate> {
    let of_port = |port: &String| {
        let rate = |(counter, packets): (&'static str, &str)| {
            let count = counters.get(port, counter)?;
            Some(Rate { port: port.clone(), counter, count, packets: counters.get(port, packets) })
        };
        RATES.into_iter().filter_map(rate).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of_port).collect()
}

/// Returns the events that have occurred on the ports, with their counts.
pub(super) fn events(counters: &NicCounters, ports: &[String]) -> Vec<(String, &'static str, u64)> {
    let of_port = |port: &String| {
        let event =
            |name: &'static str| Some((port.clone(), name, counters.get(port, name).filter(|count| *count > 0)?));
        EVENTS.into_iter().filter_map(event).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of_port).collect()
}

/// Describes the failures in a difference of counters, worst first.
fn trouble(counters: &NicCounters, ports: &[String], events_matter: fn(&str) -> bool) -> Vec<String> {
    let mut high: Vec<Rate> = rates(counters, ports).into_iter().filter(|rate| rate.share() >= LIMIT).collect();
    high.sort_by(|one, other| other.share().total_cmp(&one.share()));
    let events = events(counters, ports).into_iter().filter(|(_, name, _)| events_matter(name));
    high.iter().map(Rate::text).chain(events.map(|(port, name, count)| format!("{port} {name} {count}"))).collect()
}

pub fn counters(machine: &Machine) -> Checked {
    let counters = NicCounters::read(machine.root());
    let ports = ports(machine, &counters);
    if ports.is_empty() {
        needed(machine)?;
        return if machine.shows_classes() && !machine.names("sys/class/infiniband").is_empty() {
            warn("no counter of an RDMA device can be read", "mount the host's /sys into the container")
        } else {
            skipped("/sys/class/infiniband cannot be read")
        };
    }
    const MEND: &str = "compare the rates of this host's NICs with those of others: ginlab doctor --peers --rates; \
                        replace the instance if they are lower";
    let listed = |lines: &[String]| {
        let more = if lines.len() > 3 { format!(" ({} more)", lines.len() - 3) } else { String::new() };
        format!("{}{more}", lines[..lines.len().min(3)].join("; "))
    };
    // During the trials, the only transfers are between NICs of this machine.
    let grown = machine.asked.counters_before.as_ref().map(|before| counters.since(before));
    let during = grown.as_ref().map_or(Vec::new(), |grown| trouble(grown, &ports, |_| true));
    if !during.is_empty() {
        return warn(format!("during the trials: {}", listed(&during)), MEND);
    }
    // Unresponsive peers remain after a job is killed. They do not indicate a fault of this machine.
    let since = trouble(&counters, &ports, |name| name == "impaired_remote_conn_events");
    if !since.is_empty() {
        return warn(format!("since the devices came up: {}", listed(&since)), MEND);
    }
    let worst = rates(&counters, &ports).into_iter().max_by(|one, other| one.share().total_cmp(&other.share()));
    let worst =
        worst.filter(|rate| rate.count > 0).map_or("no drops or retransmissions".to_owned(), |rate| rate.text());
    let events: Vec<String> =
        events(&counters, &ports).iter().map(|(port, name, count)| format!("{port} {name} {count}")).collect();
    let events = if events.is_empty() { String::new() } else { format!("; {}", listed(&events)) };
    let during = if grown.is_some() { "; nothing during the trials" } else { "" };
    ok(format!("since the devices came up: {worst}{events}{during}"))
}
