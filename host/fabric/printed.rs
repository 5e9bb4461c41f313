//! Parser of libfabric's printed form of fabric entries (`fi_info -v`).

use std::net::SocketAddr;

use libfabric_sys as sys;

use super::domain::{AddressFamily, Domain};
use super::listed::Listed;
use ginlab_topology::pci::PciAddress;

/// One entry with its values, each of which has a heading.
pub struct FiInfoEntry<'a> {
    /// Number of the block's first line, from 1.
    pub line: usize,
    values: Vec<(&'a str, &'a str, &'a str)>,
}

/// Parses all entries of a text. Ignores lines before the first entry.
pub fn entries(text: &str) -> Vec<FiInfoEntry<'_>> {
    let mut entries: Vec<FiInfoEntry<'_>> = Vec::new();
    let mut headings: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        // The lines of an entry can be interleaved with log lines of libfabric (`libfabric:1234:...`) or of an
        // application.
        if (indent == 0 && key != "fi_info") || (key == "libfabric" && !value.starts_with(' ')) {
            continue;
        }
        if key == "fi_info" && indent == 0 {
            entries.push(FiInfoEntry { line: number + 1, values: Vec::new() });
            headings = vec![(0, key)];
            continue;
        }
        let Some(entry) = entries.last_mut() else { continue };
        while headings.last().is_some_and(|(outer, _)| *outer >= indent) {
            headings.pop();
        }
        match (value.trim(), headings.last()) {
            ("", _) => headings.push((indent, key)),
            (value, Some((_, heading))) => entry.values.push((heading, key, value)),
            (_, None) => {}
        }
    }
    entries
}

impl<'a> FiInfoEntry<'a> {
    /// Returns a value. `None` if libfabric printed a null pointer.
    fn text(&self, heading: &str, key: &str) -> Option<&'a str> {
        let found = self.values.iter().find(|(under, name, _)| *under == heading && *name == key);
        found.map(|(_, _, value)| *value).filter(|value| !["(null)", "(nil)"].contains(value))
    }

    fn owned(&self, heading: &str, key: &str) -> Option<String> {
        self.text(heading, key).map(str::to_owned)
    }

    fn number<T: std::str::FromStr>(&self, heading: &str, key: &str) -> Option<T> {
        self.text(heading, key)?.parse().ok()
    }

    /// Parses a list of the form `[ A, B ]`.
    fn list(&self, heading: &str, key: &str) -> Vec<String> {
        let text = self.text(heading, key).unwrap_or_default().trim_matches(['[', ']', ' ']);
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the entry as a listed domain. The error names the missing value.
    pub fn listed(&self) -> Result<Listed, &'static str> {
        let capabilities = self.list("fi_info", "caps");
        let mr_mode = self.list("fi_domain_attr", "mr_mode");
        let completions = self.list("fi_tx_attr", "op_flags");
        let named = |list: &[String], name: &str| list.iter().any(|word| word == name).then_some(true);
        // libfabric 1.x reports the progress of control and of data separately; a rail waits for data.
        let progress = ["data_progress", "progress"].iter().find_map(|key| self.owned("fi_domain_attr", key));
        let order = self.text("fi_tx_attr", "msg_order").map(|_| self.list("fi_tx_attr", "msg_order"));
        Ok(Listed {
            domain: self.domain()?,
            version: self.owned("fi_fabric_attr", "prov_version"),
            endpoint: self.owned("fi_ep_attr", "type"),
            protocol: self.owned("fi_ep_attr", "protocol"),
            address: self.text("fi_info", "src_addr").map(|address| host(address).to_owned()),
            max_message_bytes: self.number("fi_ep_attr", "max_msg_size"),
            queue: self.number("fi_tx_attr", "size"),
            threading: self.owned("fi_domain_attr", "threading"),
            progress,
            device: self.owned("fi_device_attr", "name"),
            driver: self.owned("fi_device_attr", "driver"),
            link_state: self.owned("fi_link_attr", "state").filter(|state| state != "FI_LINK_UNKNOWN"),
            mtu_bytes: self.number("fi_link_attr", "mtu").filter(|mtu| *mtu > 0),
            // A flag that is missing here may still be granted on request.
            delivery_complete: named(&completions, "FI_DELIVERY_COMPLETE"),
            cuda_memory: named(&capabilities, "FI_HMEM").or(named(&mr_mode, "FI_MR_HMEM")),
            capabilities,
            mr_mode,
            order,
            numa_node: None,
            gpu: None,
        })
    }

    fn domain(&self) -> Result<Domain, &'static str> {
        let family = match self.text("fi_info", "addr_format") {
            Some("FI_SOCKADDR_IN") => AddressFamily::Ipv4,
            Some("FI_SOCKADDR_IN6") => AddressFamily::Ipv6,
            Some("FI_ADDR_STR") => AddressFamily::Text,
            Some("FI_ADDR_EFA") => AddressFamily::Efa,
            // The printed form does not contain the number of the format.
            _ => AddressFamily::Other(sys::FI_FORMAT_UNSPEC),
        };
        let address = self.text("fi_info", "src_addr").filter(|_| family.is_ip()).and_then(|address| {
            let (_, place) = address.split_once("://")?;
            Some(place.parse::<SocketAddr>().ok()?.ip())
        });
        let pci = |key| self.number::<u32>("fi_pci_attr", key);
        let byte = |key| pci(key).and_then(|value| u8::try_from(value).ok());
        let pci = (|| {
            Some(PciAddress {
                domain: pci("domain_id")?,
                bus: byte("bus_id")?,
                device: byte("device_id")?,
                function: byte("function_id")?,
            })
        })();
        Ok(Domain {
            provider: self.owned("fi_fabric_attr", "prov_name").ok_or("prov_name")?,
            fabric: self.owned("fi_fabric_attr", "name").ok_or("name of its fabric")?,
            name: self.owned("fi_domain_attr", "name").ok_or("name of its domain")?,
            family,
            address,
            link_bits_per_second: self.number("fi_link_attr", "speed").filter(|speed| *speed > 0),
            pci,
            immediate_bytes: self.number("fi_domain_attr", "cq_data_size").ok_or("cq_data_size")?,
        })
    }
}

/// Returns the host part of a printed address, without kind, port and queue.
fn host(address: &str) -> &str {
    let place = address.split_once("://").map_or(address, |(_, place)| place);
    match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        // An IPv4 address and its port. Addresses of other kinds have no distinguishable port.
        None if place.parse::<SocketAddr>().is_ok() => place.split(':').next().unwrap_or(place),
        None => place,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn places_omit_kind_port_and_queue() {
        for (printed, expected) in [
            ("fi_sockaddr_in://192.0.2.2:0", "192.0.2.2"),
            ("fi_sockaddr_in6://[fe80::1]:0", "fe80::1"),
            ("fi_addr_efa://[fe80::8e7:efff:feee:e81d]:0:0", "fe80::8e7:efff:feee:e81d"),
            ("fi_shm://9891", "9891"),
            ("fi_addr_psmx3://0:0:0:102", "0:0:0:102"),
            ("strange", "strange"),
        ] {
            assert_eq!(host(printed), expected);
        }
    }

    /// Parses an entry that consists of `lines` and the values that every domain must have.
    fn read(lines: &str) -> Listed {
        let text = format!(
            "above: [ it ]\n  fi_info: [ no entry ]\nfi_info:\n    caps: [ FI_RMA, FI_SEND ]\n    addr_format: FI_ADDR_EFA\n  fi_tx_attr:\n    \
             op_flags: [ FI_DELIVERY_COMPLETE ]\n  fi_domain_attr:\n    name: card\n    cq_data_size: 4\n{lines}  fi_fabric_attr:\n    \
             name: f\n    prov_name: efa\n"
        );
        let found = entries(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3, "as an editor counts");
        found[0].listed().expect("a domain")
    }

    #[test]
    fn unknown_values_parse_as_missing() {
        let link = |speed: &str| read(&format!("  fi_link_attr:\n{speed}"));
        let known = link("    speed: 100\n    mtu: 8928\n    state: FI_LINK_UP\n");
        assert_eq!((known.domain.link_bits_per_second, known.mtu_bytes), (Some(100), Some(8928)));
        assert_eq!(known.link_state.as_deref(), Some("FI_LINK_UP"));
        let one = link("    speed: 1\n    mtu: 1\n");
        assert_eq!((one.domain.link_bits_per_second, one.mtu_bytes), (Some(1), Some(1)));
        let unknown = link("    speed: 0\n    mtu: 0\n    state: FI_LINK_UNKNOWN\n");
        assert_eq!((unknown.domain.link_bits_per_second, unknown.mtu_bytes, unknown.link_state), (None, None, None));
    }

    #[test]
    fn log_lines_inside_entry_are_ignored() {
        let whole = read("");
        let log = "libfabric:1234:1700000000::core:core:fi_param_get_():290<info> variable x=<not set>";
        let text = format!(
            "fi_info:\n{log}\n    caps: [ FI_RMA, FI_SEND ]\n    {log}\n    addr_format: FI_ADDR_EFA\n{log}\n  fi_tx_attr:\n{log}\n    \
             op_flags: [ FI_DELIVERY_COMPLETE ]\n  fi_domain_attr:\nnode-a:77: said: something\n    name: card\n{log}\n    \
             cq_data_size: 4\n  fi_fabric_attr:\n    name: f\n{log}\n    prov_name: efa\n"
        );
        let found = entries(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].listed(), Ok(whole));
    }

    #[test]
    fn flags_are_looked_for_by_name() {
        let read = read("");
        assert_eq!((read.delivery_complete, read.cuda_memory), (Some(true), None));
        assert_eq!(read.capabilities, ["FI_RMA", "FI_SEND"]);
        assert_eq!(read.domain.family, AddressFamily::Efa);
    }
}
