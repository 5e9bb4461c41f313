//! Checks of environment variables, interpreted as the software that reads them does.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_fabric::filter::{self, truth};

pub fn variables(machine: &Machine) -> Checked {
    // Problem of each variable, and whether it makes runs fail.
    let mut wrong: Vec<(String, bool)> = Vec::new();
    let interfaces = machine.names("sys/class/net");
    for (name, value) in &machine.environment {
        let text = match name.as_str() {
            filter::VARIABLE if machine.wanted.efa && !filter::shows(value, "efa") => {
                wrong.push((format!("FI_PROVIDER={value} hides efa"), true));
                continue;
            }
            "FI_EFA_FORK_SAFE" if truth(value) != Some(true) => continue,
            // libibverbs checks only whether these variables are set, not their values.
            "FI_EFA_FORK_SAFE" | "RDMAV_FORK_SAFE" | "IBV_FORK_SAFE" => {
                "is not needed from Linux 5.15 on, and costs performance"
            }
            "FI_EFA_USE_DEVICE_RDMA" => match truth(value) {
                Some(false) => "disables RDMA",
                Some(true) => "is not needed from libfabric 1.18 on",
                None => "is ignored: libfabric accepts 0, 1, true, false, yes, no, on, off",
            },
            "FI_HMEM_CUDA_USE_GDRCOPY" if truth(value) == Some(false) => "keeps small copies to GPU memory slow",
            "FI_HMEM_DISABLE_P2P" if truth(value) == Some(true) => {
                "keeps NICs from GPU memory: payloads are staged through the host"
            }
            "FI_HMEM"
                if !value.is_empty() && !value.split([',', ':', ';']).any(|part| part.eq_ignore_ascii_case("cuda")) =>
            {
                "excludes CUDA: libfabric rejects GPU memory"
            }
            "FI_HMEM_CUDA_USE_DMABUF" if truth(value) == Some(false) => {
                "prevents registration of GPU memory by dma-buf, which leaves only efa_nv_peermem"
            }
            "FI_EFA_IFACE" if !value.is_empty() && value != "all" => "hides the other EFA devices from libfabric",
            _ if name.starts_with("RDMAV_") => "is internal to rdma-core and should not be set",
            "NCCL_SOCKET_IFNAME" | "FI_TCP_IFACE" | "OMPI_MCA_btl_tcp_if_include"
                if !interfaces.is_empty() && !names_one(name, value, &interfaces) =>
            {
                wrong.push((format!("{name}={value} names no interface of this host"), true));
                continue;
            }
            _ => continue,
        };
        wrong.push((format!("{name}={value} {text}"), false));
    }
    if machine.environment.is_empty() {
        return skipped("no variable was recorded");
    }
    if wrong.is_empty() {
        let set = machine.environment.iter().map(|(name, value)| (name.into(), value.into()));
        let count = ginlab_topology::environment::variables(set).len();
        return ok(format!("{count} variables of libfabric, NCCL, CUDA and MPI are set, none causes problems"));
    }
    let names: Vec<&str> = wrong.iter().filter_map(|(text, _)| text.split('=').next()).collect();
    let mend = format!("unset {}", names.join(" "));
    let text = wrong.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ");
    if wrong.iter().any(|(_, stops)| *stops) { fail(text, mend) } else { warn(text, mend) }
}

/// Returns whether the value selects an existing interface, as the software that reads the variable interprets it.
fn names_one(variable: &str, value: &str, interfaces: &[String]) -> bool {
    match variable {
        // The value is a single complete name.
        "FI_TCP_IFACE" => interfaces.iter().any(|name| name == value),
        // The value contains complete names or networks. Networks (10.0.0.0/8) are assumed to match.
        "OMPI_MCA_btl_tcp_if_include" => {
            value.split(',').any(|part| part.contains('/') || interfaces.iter().any(|name| name == part))
        }
        _ => left_by_nccl(value, interfaces),
    }
}

/// Returns whether NCCL's list (`eth0,ens`) selects an interface. It contains prefixes of names, complete names if it
/// starts with `=`, and exclusions if it starts with `^`. A port may follow a name. NCCL ignores a value of one
/// character.
fn left_by_nccl(value: &str, interfaces: &[String]) -> bool {
    if value.len() <= 1 {
        return true;
    }
    let (excludes, list) = value.strip_prefix('^').map_or((false, value), |list| (true, list));
    let (exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
    let listed = |name: &String| {
        let mut parts = list.split(',').map(|part| part.split(':').next().unwrap_or(part));
        parts.any(|part| if exact { name == part } else { !part.is_empty() && name.starts_with(part) })
    };
    // With exclusions, the loopback does not count, because ranks on other hosts cannot be reached over it.
    interfaces.iter().any(|name| if excludes { name != "lo" && !listed(name) } else { listed(name) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_variables_are_interpreted_like_their_libraries() {
        let interfaces = ["lo", "ens5", "ens32"].map(str::to_owned);
        for (variable, value, left) in [
            ("NCCL_SOCKET_IFNAME", "ens", true),
            ("NCCL_SOCKET_IFNAME", "eth,ens3", true),
            ("NCCL_SOCKET_IFNAME", "=ens", false),
            ("NCCL_SOCKET_IFNAME", "=eth0,ens5", true),
            ("NCCL_SOCKET_IFNAME", "ens5:4000", true),
            ("NCCL_SOCKET_IFNAME", "^ens", false),
            ("NCCL_SOCKET_IFNAME", "^docker0,lo", true),
            ("NCCL_SOCKET_IFNAME", "^=ens", true),
            ("NCCL_SOCKET_IFNAME", "", true),
            ("NCCL_SOCKET_IFNAME", "eth", false),
            ("FI_TCP_IFACE", "ens5", true),
            ("FI_TCP_IFACE", "ens", false),
            ("FI_TCP_IFACE", "ens5,ens32", false),
            ("OMPI_MCA_btl_tcp_if_include", "eth0,ens5", true),
            ("OMPI_MCA_btl_tcp_if_include", "ens", false),
            ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8", true),
        ] {
            assert_eq!(names_one(variable, value, &interfaces), left, "{variable}={value}");
        }
    }
}
