//! Validation of host names and addresses in environment variables, before any wait depends on them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::BootstrapError;

/// Maximum length of a name in the domain name system.
const LONGEST: usize = 253;

/// Returns the host in variable `name`, in a form that the system's resolver accepts.
///
/// # Errors
/// Returns a usage error if `value` can be neither a host name nor an address, since retries until the timeout would be
/// useless.
pub(super) fn checked_host(name: &str, value: &str) -> Result<String, BootstrapError> {
    match complaint(value) {
        None => Ok(value.to_owned()),
        Some(why) => {
            let allowed = format!(
                "{why}; expected a host name, an IPv4 address or an IPv6 address, such as node0, 10.0.0.1 or \
                 fe80::1%eth0"
            );
            Err(BootstrapError::bad_variable(name, value, allowed))
        }
    }
}

/// Returns the reason why `host` cannot be a host; `None` if it can.
fn complaint(host: &str) -> Option<&'static str> {
    let is_name = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    let labels = || host.strip_suffix('.').unwrap_or(host).split('.');
    match host {
        _ if host.trim().is_empty() => Some("it is empty"),
        _ if host.trim() != host => Some("it has leading or trailing spaces"),
        _ if host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).is_some_and(is_ipv6) => {
            Some("it has brackets, which only a URL needs")
        }
        _ if host.contains("://") => Some("it has a scheme"),
        _ if host.parse().is_ok_and(|address: Ipv6Addr| address.is_unicast_link_local()) => {
            Some("a link-local address needs its interface")
        }
        _ if host.parse().is_ok_and(is_of_many) => Some("it is an address of many hosts"),
        _ if is_ipv6(host) => None,
        _ if host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())) => {
            Some("it has a port, which belongs in MASTER_PORT")
        }
        _ if !is_name(host) => Some("it has a character that is not allowed in names"),
        _ if host.len() > LONGEST || labels().any(|label| label.is_empty() || label.len() > 63) => {
            Some("one of its labels is empty or too long")
        }
        // The last part of a name is never a number, so such a text is an address or invalid.
        _ if labels().next_back().is_some_and(is_number) && !is_ipv4(host) => Some("it is not an IPv4 address"),
        _ => None,
    }
}

/// Returns whether an address belongs to no single host, so that no connection to it can succeed.
fn is_of_many(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Returns whether this is an IPv6 address, optionally followed by the interface that a link-local address requires.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "-"));
    address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && !zone.contains([' ', ':', '[', ']', '/'])
}

fn is_number(part: &str) -> bool {
    number(part).is_some() || part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a number like inet_aton(3): decimal, octal or hexadecimal.
fn number(part: &str) -> Option<u64> {
    let (digits, base) = match part {
        _ if part.starts_with("0x") || part.starts_with("0X") => (&part[2..], 16),
        _ if part.len() > 1 && part.starts_with('0') => (&part[1..], 8),
        _ => (part, 10),
    };
    u64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with('+'))
}

/// Returns whether the system's resolver accepts this as an IPv4 address. Examples are `127.1` and `0x7f000001`.
fn is_ipv4(text: &str) -> bool {
    let parts: Option<Vec<u64>> = text.split('.').map(number).collect();
    let short = parts.and_then(|parts| {
        let (last, first) = parts.split_last()?;
        let room = 1u64 << (8 * 4usize.checked_sub(first.len())?);
        Some(first.iter().all(|part| *part < 256) && *last < room && room > 1)
    });
    text.parse::<Ipv4Addr>().is_ok() || short.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_accepted_like_resolver_does() {
        for (value, host) in [
            ("node0", "node0"),
            ("::1", "::1"),
            ("fe80::1%eth0", "fe80::1%eth0"),
            ("a_b-c.example.org.", "a_b-c.example.org."),
            ("127.1", "127.1"),
            ("0x7f000001", "0x7f000001"),
            ("ip-10-0-0-1", "ip-10-0-0-1"),
            ("node-1.cluster2", "node-1.cluster2"),
        ] {
            assert_eq!(checked_host("MASTER_ADDR", value).as_deref(), Ok(host), "{value:?}");
        }
    }

    #[test]
    fn invalid_hosts_are_rejected_in_one_line() {
        for (value, part) in [
            (" 127.0.0.1", "it has leading or trailing spaces"),
            ("127.0.0.1\n", "it has leading or trailing spaces"),
            ("[::1]", "it has brackets"),
            ("127.0.0.1:29500", "it has a port"),
            ("node0:29500", "it has a port"),
            ("[::1]:29500", "it has a port"),
            ("tcp://127.0.0.1", "it has a scheme"),
            ("https://node0:1", "it has a scheme"),
            ("a b", "a character that is not allowed in names"),
            ("node0,node1", "a character that is not allowed in names"),
            ("node[0-3]", "a character that is not allowed in names"),
            ("[node0]", "a character that is not allowed in names"),
            ("node0/24", "a character that is not allowed in names"),
            ("fe80::1", "a link-local address needs its interface"),
            ("255.255.255.255", "an address of many hosts"),
            ("224.0.0.1", "an address of many hosts"),
            ("ff02::1", "an address of many hosts"),
            ("256.1.1.1", "not an IPv4 address"),
            ("1.2.3.4.5", "not an IPv4 address"),
            ("a..b", "empty or too long"),
            (" ", "it is empty"),
        ] {
            let error = checked_host("MASTER_ADDR", value).expect_err(value).to_string();
            assert!(error.starts_with("MASTER_ADDR=") && error.contains(part), "{error}");
            assert!(!error.contains('\n') && error.contains("expected a host name"), "{error}");
        }
    }
}
