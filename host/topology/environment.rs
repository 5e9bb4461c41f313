//! Environment of a run that affects its results: environment variables, clocks, and the NICs' counters.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Prefixes of environment variables that affect libraries.
const PREFIXES: [&str; 13] = [
    "FI_",
    "CUDA_",
    "NCCL_",
    "OFI_NCCL_",
    "GINLAB_",
    "OMP_",
    "UCX_",
    "OMPI_MCA_",
    "PMIX_MCA_",
    "RDMAV_",
    "MLX5_",
    "EFA_",
    "TOKIO_",
];
/// Complete names of such variables. (Other variables that start with `NVIDIA_` control the start of containers, and
/// are long.)
const NAMES: [&str; 4] = ["LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_CONF", "NVIDIA_VISIBLE_DEVICES"];
/// Substrings of names whose values may be secret.
const SECRETS: [&str; 7] = ["TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE", "KEY"];

/// Returns the EC2 instance type that the firmware of the machine at `root` reports.
#[must_use]
pub fn instance_type(root: &Path) -> Option<String> {
    let text = |name: &str| Some(fs::read_to_string(root.join("sys/class/dmi/id").join(name)).ok()?.trim().to_owned());
    (text("sys_vendor")? == "Amazon EC2").then(|| text("product_name"))?
}

/// Returns the variables that affect results, as `NAME=value`, sorted by name and without secrets.
pub fn variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let plain = |text: OsString| text.to_string_lossy().into_owned();
    let mut chosen: Vec<String> = variables
        .into_iter()
        .map(|(name, value)| (plain(name), plain(value)))
        .filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name.as_str()))
        .filter(|(name, _)| !SECRETS.iter().any(|secret| name.to_ascii_uppercase().contains(secret)))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    chosen.sort();
    chosen
}

/// Returns the clocks of the GPUs as lines; null if no driver reports them.
pub fn gpu_clocks() -> Value {
    let lines = crate::nvml::clocks();
    if lines.is_empty() { Value::Null } else { lines.into() }
}

/// Counters of all NICs, by device and then by name. `rdmap79s0/1` is port 1 of an RDMA device, and `rdmap79s0/device`
/// is the device itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicCounters(BTreeMap<String, BTreeMap<String, u64>>);

impl NicCounters {
    /// Reads the counters: `hw_counters` and `counters` of RDMA devices' ports, `hw_counters` of the devices, and
    /// `statistics` of hardware network interfaces. `root` is `/`, or a recorded tree.
    pub fn read(root: &Path) -> NicCounters {
        let mut counters = NicCounters::default();
        let class = root.join("sys/class");
        for (device, path) in entries(&class.join("infiniband")) {
            counters.add(format!("{device}/device"), &path.join("hw_counters"));
            for (port, path) in entries(&path.join("ports")) {
                for kind in ["hw_counters", "counters"] {
                    counters.add(format!("{device}/{port}"), &path.join(kind));
                }
            }
        }
        for (interface, path) in entries(&class.join("net")) {
            // Bridges, veths and the loopback are not NICs.
            if path.join("device").exists() {
                counters.add(interface, &path.join("statistics"));
            }
        }
        counters
    }

    /// Returns the devices that have counters. Names with a `/` are RDMA devices and their ports.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the value of a counter; `None` if the device does not have it.
    #[must_use]
    pub fn get(&self, device: &str, counter: &str) -> Option<u64> {
        self.0.get(device)?.get(counter).copied()
    }

    /// Returns the increments since `before`.
    #[must_use]
    pub fn since(&self, before: &NicCounters) -> NicCounters {
        let mut grown = self.clone();
        for (device, counters) in &mut grown.0 {
            for (name, value) in counters {
                *value = value.saturating_sub(before.get(device, name).unwrap_or(0));
            }
        }
        grown
    }

    fn add(&mut self, device: String, folder: &Path) {
        for (name, path) in entries(folder) {
            // A NIC's directory also contains settings, and files that cannot be read.
            let Some(value) = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) else { continue };
            self.0.entry(device.clone()).or_default().insert(name, value);
        }
    }

    /// Returns the changes from `self` to `after`, as `{device: {counter: [before, after]}}`; null if there are no
    /// counters.
    pub fn changes(&self, after: &NicCounters) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        let mut devices = serde_json::Map::new();
        for (device, counters) in &self.0 {
            let now = |name: &String| after.0.get(device)?.get(name).copied();
            let changed = |(name, before): (&String, &u64)| {
                let after = now(name).filter(|after| after != before)?;
                Some((name.clone(), Value::from(vec![*before, after])))
            };
            let changed: serde_json::Map<String, Value> = counters.iter().filter_map(changed).collect();
            if !changed.is_empty() {
                devices.insert(device.clone(), changed.into());
            }
        }
        devices.into()
    }
}

/// Returns the changes of counters that indicate problems, one line each: drops, errors, retransmissions, timeouts, and
/// connections of EFA devices that do not respond or are impaired.
pub fn trouble(changes: &Value) -> Vec<String> {
    const TROUBLE: [&str; 8] = ["drop", "err", "retrans", "timeout", "discard", "out_of_", "unresponsive", "impaired"];
    let devices = changes.as_object().into_iter().flatten();
    let counters = devices.flat_map(|(device, counters)| {
        let counters = counters.as_object().into_iter().flatten();
        counters.map(move |(name, change)| (device, name, change))
    });
    counters
        .filter(|(_, name, _)| TROUBLE.iter().any(|part| name.contains(part)))
        .map(|(device, name, change)| format!("{device} {name} {} -> {}", change[0], change[1]))
        .collect()
}

/// Returns the paths in a directory by name; empty if there is no such directory.
fn entries(folder: &Path) -> BTreeMap<String, std::path::PathBuf> {
    let Ok(found) = fs::read_dir(folder) else { return BTreeMap::new() };
    found
        .filter_map(|entry| entry.ok())
        .map(|one| (one.file_name().to_string_lossy().into_owned(), one.path()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn relevant_variables_are_listed_without_secrets() {
        let variables = [
            ("NCCL_DEBUG", "INFO"),
            ("FI_EFA_USE_DEVICE_RDMA", "1"),
            ("GINLAB_TOKEN", "hidden-1"),
            ("NCCL_SECRET_THING", "hidden-2"),
            ("UCX_KEY", "hidden-3"),
            ("AWS_SECRET_ACCESS_KEY", "hidden-4"),
            ("HOME", "/root"),
            ("GINLAB_GDRAPI", "two\nlines"),
            ("LD_PRELOAD", "libx.so"),
            ("CUDA_VISIBLE_DEVICES", ""),
        ];
        let listed = super::variables(variables.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(
            listed,
            [
                "CUDA_VISIBLE_DEVICES=",
                "FI_EFA_USE_DEVICE_RDMA=1",
                "GINLAB_GDRAPI=two\nlines",
                "LD_PRELOAD=libx.so",
                "NCCL_DEBUG=INFO"
            ]
        );
    }

    /// Creates an EFA device, a hardware interface and a virtual one.
    fn machine(root: &Path, sent: u64) {
        let write = |path: &str, text: &str| {
            let path = root.join("sys/class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("infiniband/rdmap79s0/ports/1/hw_counters/tx_bytes", &format!("{sent}\n"));
        write("infiniband/rdmap79s0/ports/1/hw_counters/rx_drops", "7\n");
        write("infiniband/rdmap79s0/ports/1/hw_counters/lifespan", "ten\n");
        write("infiniband/rdmap79s0/hw_counters/reg_mr_err", "3\n");
        write("infiniband/mlx5_0/ports/2/counters/port_xmit_data", &format!("{}\n", sent / 4));
        write("net/eth0/statistics/tx_packets", &format!("{}\n", sent / 100));
        write("net/eth0/device/vendor", "0x1d0f\n");
        write("net/veth1/statistics/tx_packets", &format!("{sent}\n"));
    }

    #[test]
    fn counters_are_compared_before_and_after() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(NicCounters::read(root.path()).changes(&NicCounters::default()), Value::Null);
        machine(root.path(), 1000);
        let before = NicCounters::read(root.path());
        assert_eq!(before.changes(&before), serde_json::json!({}), "there are cards, and nothing has moved");
        machine(root.path(), 9000);
        assert_eq!(
            before.changes(&NicCounters::read(root.path())),
            serde_json::json!({
                "eth0": { "tx_packets": [10, 90] },
                "mlx5_0/2": { "port_xmit_data": [250, 2250] },
                "rdmap79s0/1": { "tx_bytes": [1000, 9000] },
            })
        );
        let changes = serde_json::json!({
            "eth0": { "tx_packets": [1, 2], "rx_errors": [0, 3] },
            "x/1": { "rx_drops": [7, 9], "impaired_remote_conn_events": [0, 1] },
        });
        assert_eq!(
            trouble(&changes),
            ["eth0 rx_errors 0 -> 3", "x/1 impaired_remote_conn_events 0 -> 1", "x/1 rx_drops 7 -> 9"]
        );
        assert!(trouble(&Value::Null).is_empty());
        assert_eq!(before.devices().collect::<Vec<_>>(), ["eth0", "mlx5_0/2", "rdmap79s0/1", "rdmap79s0/device"]);
        assert_eq!(before.get("rdmap79s0/device", "reg_mr_err"), Some(3));
        let grown = NicCounters::read(root.path()).since(&before);
        assert_eq!((grown.get("rdmap79s0/1", "tx_bytes"), grown.get("rdmap79s0/1", "rx_drops")), (Some(8000), Some(0)));
        // A NIC that has disappeared in the meantime is not an error.
        assert_eq!(before.changes(&NicCounters::default()), serde_json::json!({}));
    }
}
