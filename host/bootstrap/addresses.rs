//! Plausibility checks of the rail addresses that ranks, or the two sides of a session, exchange.
//!
//! An address that cannot lead from one host to the other is rejected here, and the error names both owners. Otherwise
//! the first write over that rail would run into its timeout, and its message would blame the peer or a firewall.

use super::Bootstrap;
use super::error::{BootstrapError, FailureKind};
use super::identity::Member;
use super::session::Session;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The part of an address that identifies its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner<'a> {
    /// IP address of a socket address; unique in all network namespaces that reach each other.
    Ip(IpAddr),
    /// GID of an EFA device; unique across machines.
    Gid([u8; 16]),
    /// Any other address, for example the text used by libfabric's shm provider; unique across endpoints.
    Endpoint(&'a [u8]),
}

impl Owner<'_> {
    /// Parses an address in the form that rails exchange: `sockaddr_in`, `sockaddr_in6`, `efa_ep_addr`, or the address
    /// of a verbs rail.
    fn of(address: &[u8]) -> Owner<'_> {
        const V4: u16 = 2;
        const V6: u16 = 10;
        let family = address.first_chunk().map(|family| u16::from_ne_bytes(*family));
        let bytes = |start: usize| address.get(start..start + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        let gid = |start: usize| address.get(start..start + 16).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        let owner = match (address.len(), family) {
            (16, Some(V4)) => bytes(4).map(|ip| Owner::Ip(Ipv4Addr::from(ip).into())),
            (28, Some(V6)) => gid(8).map(|ip| Owner::Ip(IpAddr::from(Ipv6Addr::from(ip)).to_canonical())),
            // GID, queue pair number and key; libfabric appends a pointer.
            (24 | 32, _) => gid(0).map(Owner::Gid),
            _ => None,
        };
        owner.unwrap_or(Owner::Endpoint(address))
    }
}

/// Formats the address for messages.
impl std::fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Ip(ip) => ip.fmt(f),
            Owner::Gid(gid) => Ipv6Addr::from(*gid).fmt(f),
            Owner::Endpoint(bytes) => write!(f, "{:?}", ginlab_base::text::printable(&String::from_utf8_lossy(bytes))),
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// One side of the exchange: its label in messages, its host, and its address on each rail.
struct Party<'a> {
    label: String,
    member: &'a Member,
    rails: &'a [Vec<u8>],
}

impl<'a> Party<'a> {
    fn new(name: &str, member: &'a Member, rails: &'a [Vec<u8>]) -> Party<'a> {
        Party { label: format!("{name} (host {})", member.host), member, rails }
    }
}

/// Checks all addresses of all parties. Returns notes for a reader of results, or the reason for a refusal, each as one
/// line.
fn check(parties: &[Party<'_>]) -> Result<Vec<String>, String> {
    const REMEDY: &str =
        "omit this rail (by naming the domains of the others), or give each host's interface its own address";
    let mut notes = names_of_hosts(parties);
    let mut known: HashMap<Owner<'_>, (&Party<'_>, usize)> = HashMap::new();
    let mut endpoints: HashMap<&[u8], (&Party<'_>, usize)> = HashMap::new();
    for party in parties {
        let apart = parties.iter().find(|other| other.member.network() != party.member.network());
        let mut noted = false;
        for (rail, address) in party.rails.iter().enumerate().filter(|(_, address)| !address.is_empty()) {
            let (owner, label) = (Owner::of(address), &party.label);
            if let (Owner::Ip(ip), Some(other)) = (owner, apart) {
                let what = match ip {
                    _ if ip.is_loopback() => "loopback address",
                    _ if ip.is_unspecified() => "unspecified address",
                    _ if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => "multicast or broadcast address",
                    _ => "",
                };
                if !what.is_empty() {
                    let other = &other.label;
                    return Err(format!(
                        "rail {rail} of {label} has the {what} {ip}, which {other} cannot reach; {REMEDY}"
                    ));
                }
                if is_link_local(ip) && !std::mem::replace(&mut noted, true) {
                    notes.push(format!(
                        "rail {rail} of {label} has the link-local address {ip}: only hosts on its link reach it"
                    ));
                }
            }
            if let Some((other, of)) = known.get(&owner) {
                let is_elsewhere = match owner {
                    Owner::Ip(_) => other.member.network() != party.member.network(),
                    Owner::Gid(_) => other.member.is_other_machine(party.member),
                    Owner::Endpoint(_) => false,
                };
                if is_elsewhere {
                    return Err(format!(
                        "rail {of} of {} and rail {rail} of {label} have the same address {owner}, so they cannot \
                         reach each other; {REMEDY}",
                        other.label
                    ));
                }
            } else {
                known.insert(owner, (party, rail));
            }
            if let Some((other, of)) = endpoints.insert(address, (party, rail)) {
                return Err(format!(
                    "rail {of} of {} and rail {rail} of {label} have the same address {owner} but are different \
                     endpoints; start each rank once, and do not let containers share process IDs or names",
                    other.label
                ));
            }
        }
    }
    Ok(notes)
}

/// Returns a note if two hosts have the same name.
fn names_of_hosts(parties: &[Party<'_>]) -> Vec<String> {
    let mut known: HashMap<&str, &Party<'_>> = HashMap::new();
    for party in parties {
        let first = known.entry(&party.member.host).or_insert(party);
        if first.member.network() != party.member.network() {
            let (one, other, host) = (&first.label, &party.label, &party.member.host);
            return vec![format!("{one} and {other} are on two hosts named {host}: messages cannot distinguish them")];
        }
    }
    Vec::new()
}

impl Bootstrap {
    /// Checks the addresses that all ranks have exchanged, by rank and rail, before they are used. Adds notes to
    /// [`notes`](Bootstrap::notes).
    ///
    /// # Errors
    /// Returns a usage error, the same on every rank, if an address cannot lead to its rank from another host.
    pub fn check_addresses<'a>(
        &mut self,
        rails: impl IntoIterator<Item = &'a [Vec<u8>]>,
    ) -> Result<(), BootstrapError> {
        let checked = {
            let ranks = self.members.iter().zip(rails).enumerate();
            let party = |(rank, (member, rails))| Party::new(&format!("rank {rank}"), member, rails);
            check(&ranks.map(party).collect::<Vec<_>>())
        };
        match checked {
            Ok(notes) => {
                for note in notes {
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                }
                Ok(())
            }
            Err(text) => {
                // Every rank detects the error independently, so no message is sent.
                let error = BootstrapError::usage(text);
                self.broken = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl Session {
    /// Checks the addresses that both sides have exchanged, by rail, before they are used.
    ///
    /// # Errors
    /// Returns a usage error if an address cannot lead from one side to the other.
    pub fn check_addresses(&self, ours: &[Vec<u8>], theirs: &[Vec<u8>]) -> Result<(), BootstrapError> {
        let here = Member::here();
        let parties = [Party::new("this side", &here, ours), Party::new("the other side", self.member(), theirs)];
        check(&parties).map(drop).map_err(|text| BootstrapError::Other(FailureKind::Usage, text))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    fn member(host: &str, boot: &str, network: u32) -> Member {
        Member { host: host.to_owned(), pid: 7, identity: format!("{host} {boot} net:[{network}]") }
    }

    fn v4(ip: [u8; 4], port: u16) -> Vec<u8> {
        [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &ip, &[0; 8]].concat()
    }

    fn v6(ip: &str, port: u16) -> Vec<u8> {
        let ip: Ipv6Addr = ip.parse().unwrap();
        [&10u16.to_ne_bytes()[..], &port.to_be_bytes(), &[0; 4], &ip.octets(), &[0; 4]].concat()
    }

    /// Address in the layout of libfabric's `efa_ep_addr`.
    fn efa(gid: u8, number: u16) -> Vec<u8> {
        [&[0xfe, 0x80][..], &[gid; 14], &number.to_ne_bytes(), &[0; 14]].concat()
    }

    fn outcome(parties: &[(Member, Vec<Vec<u8>>)]) -> Result<Vec<String>, String> {
        let ranks = parties.iter().enumerate();
        let ranks = ranks.map(|(rank, (member, rails))| Party::new(&format!("rank {rank}"), member, rails));
        check(&ranks.collect::<Vec<_>>())
    }

    #[test]
    fn addresses_that_reach_all_ranks_pass() {
        let (a, b) = (member("a", "boot-a", 1), member("b", "boot-b", 1));
        let rails = |last: u8, port: u16| {
            vec![v4([10, 0, 0, last], port), v4([10, 0, 0, last], port + 1), v6("2001:db8::1", port)]
        };
        let mut others = rails(2, 100);
        others[2] = v6("2001:db8::2", 100);
        // Two ranks of one host share its interfaces, and one host is reached over its loopback.
        let all = [(a.clone(), rails(1, 100)), (a.clone(), rails(1, 200)), (b.clone(), others)];
        assert_eq!(outcome(&all), Ok(vec![]));
        assert_eq!(
            outcome(&[(a.clone(), vec![v4([127, 0, 0, 1], 1)]), (a.clone(), vec![v4([127, 0, 0, 1], 2)])]),
            Ok(vec![])
        );
        // Containers that share a network namespace have different host names.
        let shared = member("container", "boot-a", 1);
        assert_eq!(
            outcome(&[(a.clone(), vec![v4([10, 0, 0, 1], 1)]), (shared, vec![v4([10, 0, 0, 1], 2)])]),
            Ok(vec![])
        );
        // Two containers of one machine may share an EFA device. Null rails have no addresses.
        let namespace = member("c", "boot-a", 2);
        assert_eq!(outcome(&[(a.clone(), vec![efa(1, 1)]), (namespace, vec![efa(1, 2)])]), Ok(vec![]));
        assert_eq!(outcome(&[(a.clone(), vec![vec![]]), (a, vec![vec![]])]), Ok(vec![]));
    }

    #[test]
    fn unreachable_addresses_are_rejected_with_both_owners() {
        let (a, b) = (member("a", "boot-a", 1), member("b", "boot-b", 1));
        let good = |last: u8| v4([10, 0, 0, last], 9);
        for (first, second, words) in [
            (v4([172, 30, 0, 1], 1), v4([172, 30, 0, 1], 2), "same address 172.30.0.1"),
            (v6("fd00::1", 1), v6("fd00::1", 2), "same address fd00::1"),
            (v6("::ffff:172.30.0.1", 1), v4([172, 30, 0, 1], 2), "same address 172.30.0.1"),
            (
                v4([172, 30, 0, 2], 1),
                v4([127, 0, 0, 2], 1),
                "rail 1 of rank 1 (host b) has the loopback address 127.0.0.2",
            ),
            (v6("::1", 1), v6("fd00::1", 1), "rail 1 of rank 0 (host a) has the loopback address ::1"),
            (v4([172, 30, 0, 2], 1), v4([0, 0, 0, 0], 1), "unspecified address 0.0.0.0"),
            (v4([224, 0, 0, 2], 1), v4([10, 0, 0, 9], 1), "multicast or broadcast address 224.0.0.2"),
            (efa(1, 1), efa(1, 2), "same address fe80:"),
        ] {
            let refused =
                outcome(&[(a.clone(), vec![good(1), first]), (b.clone(), vec![good(2), second])]).unwrap_err();
            let names = ["rank 0", "rank 1", "host a", "host b", "rail 1", words];
            assert!(names.iter().all(|name| refused.contains(name)) && refused.lines().count() == 1, "{refused}");
        }
        // Even on one host, two ranks must not have the same endpoint.
        for address in [v4([10, 0, 0, 1], 5), efa(3, 5), b"fi_shm://12:0\0".to_vec()] {
            let refused = outcome(&[(a.clone(), vec![good(1), address.clone()]), (a.clone(), vec![good(2), address])]);
            assert!(refused.clone().unwrap_err().contains("are different endpoints"), "{refused:?}");
        }
    }

    #[test]
    fn link_local_addresses_and_equal_hostnames_are_noted() {
        let (a, b) = (member("node", "boot-a", 1), member("node", "boot-b", 1));
        let notes = outcome(&[(a, vec![v6("fe80::1", 1)]), (b, vec![v4([169, 254, 0, 2], 1)])]).unwrap();
        let words = ["two hosts named node", "rank 0 (host node) has the link-local address fe80::1", "169.254.0.2"];
        assert!(
            notes.len() == 3 && words.iter().all(|words| notes.iter().any(|note| note.contains(words))),
            "{notes:?}"
        );
    }
}
