use proptest::prelude::*;

use super::*;

fn ip(name: &str, fabric: &str, address: &str) -> Domain {
    let address: std::net::IpAddr = address.parse().expect("an address");
    Domain {
        provider: "tcp".to_owned(),
        fabric: fabric.to_owned(),
        name: name.to_owned(),
        family: if address.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 },
        address: Some(address),
        link_bits_per_second: None,
        pci: None,
        immediate_bytes: 8,
    }
}

fn efa(bus: u8, fabric: &str) -> Domain {
    Domain {
        provider: "efa".to_owned(),
        fabric: fabric.to_owned(),
        name: format!("rdmap{bus}s0-rdm"),
        family: AddressFamily::Efa,
        address: None,
        link_bits_per_second: Some(100_000_000_000),
        pci: Some(PciAddress { domain: 0, bus, device: 0, function: 0 }),
        immediate_bytes: 4,
    }
}

/// A host like a p5 in production: containers, loopback, link-local addresses, two data interfaces.
fn host() -> Vec<Domain> {
    vec![
        ip("docker0", "172.17.0.0/16", "172.17.0.1"),
        ip("enp75s0", "fe80::/64", "fe80::1"),
        ip("enp75s0", "fd00::/64", "fd00::7"),
        ip("enp75s0", "172.19.192.0/18", "172.19.200.7"),
        ip("ens6", "10.1.0.0/16", "10.1.0.9"),
        ip("veth_def_agent", "169.254.0.0/24", "169.254.0.1"),
        ip("lo", "::1/128", "::1"),
        ip("lo", "127.0.0.1/32", "127.0.0.1"),
    ]
}

/// Four NICs and the GPU 0000:53:00.0 below one switch, four NICs below the next, as on a p5.48xlarge.
fn p5() -> Vec<Domain> {
    [0x60, 0x61, 0x62, 0x63, 0x4f, 0x50, 0x51, 0x52].map(|bus| efa(bus, "efa")).to_vec()
}

fn p5_path(address: &PciAddress) -> Option<DeviceLocation> {
    let (root, port, first) = if address.bus < 0x55 { (0x44, 0x46, 0x4f) } else { (0x55, 0x57, 0x60) };
    let function = address.bus - first;
    let path = format!(
        "/sys/devices/pci0000:{root:02x}/0000:{root:02x}:00.0/0000:{:02x}:00.0/0000:{port:02x}:01.{function}/{address}",
        root + 1
    );
    Some(DeviceLocation { path, numa_node: None })
}

#[test]
fn numa_node_decides_without_common_bridge() {
    // Each device is on its own root bus, as in some VMs.
    let place = |address: &PciAddress| {
        let path = format!("/sys/devices/pci0000:{0:02x}/{address}", address.bus);
        Some(DeviceLocation { path, numa_node: Some(u32::from(address.bus >= 0x60)) })
    };
    let nearest = |gpu: &str| {
        let request = Request { nearest_to: gpu.parse().ok(), ..request("efa", 1, Reach::Network, &[]) };
        chosen(&select(p5(), &request, &place).expect("a plan"))[0].to_owned()
    };
    assert_eq!(nearest("0000:53:00.0"), "rdmap79s0-rdm");
    assert_eq!(nearest("0000:64:00.0"), "rdmap96s0-rdm");
    // On one root bus, the bus takes precedence over the NUMA node.
    assert_eq!(nearest("0000:51:04.0"), "rdmap81s0-rdm");
}

fn request<'a>(provider: &'a str, count: usize, reach: Reach, explicit: &'a [String]) -> Request<'a> {
    Request { provider, count, reach, explicit, nearest_to: None, local_rank: 0, local_size: 1 }
}

fn chosen(plan: &DomainSelection) -> Vec<&str> {
    plan.domains.iter().map(|domain| domain.name.as_str()).collect()
}

fn run(domains: Vec<Domain>, request: &Request<'_>) -> Result<DomainSelection, FabricError> {
    select(domains, request, &p5_path)
}

fn explicit(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn same_host_selects_shared_ipv4_loopback() {
    let plan = run(host(), &request("tcp", 4, Reach::SameHost, &[])).expect("a plan");
    assert_eq!(chosen(&plan), ["lo"; 4]);
    assert_eq!(plan.domains[0].address, Some("127.0.0.1".parse().expect("an address")));
    assert_eq!((plan.distinct, plan.note.as_deref()), (1, Some("4 endpoints share the one domain lo")));
    let plan = run(host(), &request("tcp", 1, Reach::SameHost, &[])).expect("a plan");
    assert_eq!((plan.distinct, plan.note), (1, None));
}

#[test]
fn network_excludes_loopback_bridges_and_link_local() {
    let plan = run(host(), &request("tcp", 2, Reach::Network, &[])).expect("a plan");
    assert_eq!(chosen(&plan), ["enp75s0", "ens6"]);
    assert_eq!(plan.domains[0].fabric, "172.19.192.0/18", "IPv4 before IPv6");
    let plan = run(host(), &request("tcp", 3, Reach::Network, &[])).expect("a plan");
    assert_eq!((chosen(&plan), plan.distinct), (vec!["enp75s0"; 3], 1));
    let only_loopback = host().split_off(6);
    let error = run(only_loopback, &request("tcp", 1, Reach::Network, &[])).expect_err("no network");
    assert!(error.to_string().contains("available: lo"), "{error}");
}

#[test]
fn ip_rails_keep_their_order_for_every_rank() {
    let request = Request { local_rank: 1, local_size: 2, ..request("tcp", 1, Reach::Network, &[]) };
    assert_eq!(chosen(&run(host(), &request).expect("a plan")), ["enp75s0"]);
}

#[test]
fn efa_selects_nics_below_gpu_switch() {
    let gpu = "0000:53:00.0".parse().ok();
    let request = Request { nearest_to: gpu, ..request("efa", 4, Reach::Network, &[]) };
    let plan = run(p5(), &request).expect("a plan");
    assert_eq!(chosen(&plan), ["rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm"]);
    let other = Request { nearest_to: "0000:64:00.0".parse().ok(), ..request };
    assert_eq!(chosen(&run(p5(), &other).expect("a plan"))[0], "rdmap96s0-rdm");
}

#[test]
fn four_rails_require_four_nics() {
    let one = || vec![efa(0x4f, "efa"), efa(0x4f, "efa-direct")];
    let error = run(one(), &request("efa", 4, Reach::Network, &[])).expect_err("refused").to_string();
    assert!(error.contains("4 rails need 4 NICs, but there are 1: rdmap79s0-rdm; use fewer rails"), "{error}");
    let named = explicit(&["rdmap79s0-rdm"]);
    let plan = run(one(), &request("efa", 4, Reach::Network, &named)).expect("a plan");
    assert_eq!((plan.distinct, plan.note.as_deref()), (1, Some("4 endpoints on 1 named domains")));
}

#[test]
fn two_ranks_below_one_switch_take_different_nics() {
    let plan = |local_rank| {
        let nearest_to = "0000:53:00.0".parse().ok();
        let request = Request { nearest_to, local_rank, local_size: 2, ..request("efa", 2, Reach::Network, &[]) };
        run(p5(), &request).expect("a plan")
    };
    assert_eq!(chosen(&plan(0)), ["rdmap79s0-rdm", "rdmap80s0-rdm"]);
    assert_eq!(chosen(&plan(1)), ["rdmap81s0-rdm", "rdmap82s0-rdm"]);
}

#[test]
fn selection_prefers_efa_over_efa_direct() {
    let domains = vec![efa(0x4f, "efa-direct"), efa(0x4f, "efa"), efa(0x50, "efa"), efa(0x50, "efa-direct")];
    let plan = run(domains.clone(), &request("efa", 2, Reach::Network, &[])).expect("a plan");
    assert!(plan.domains.iter().all(|domain| domain.fabric == "efa"));
    let named = explicit(&["efa-direct:rdmap79s0-rdm"]);
    let plan = run(domains, &request("efa", 1, Reach::Network, &named)).expect("a plan");
    assert_eq!(plan.domains[0].fabric, "efa-direct");
}

#[test]
fn named_domains_are_selected_or_fail_with_list() {
    let named = explicit(&["ens6", "enp75s0"]);
    let plan = run(host(), &request("tcp", 2, Reach::Network, &named)).expect("a plan");
    assert_eq!(chosen(&plan), ["ens6", "enp75s0"]);
    let plan = run(host(), &request("tcp", 3, Reach::Network, &named)).expect("a plan");
    assert_eq!(chosen(&plan), ["ens6", "enp75s0", "ens6"]);
    assert_eq!(plan.note.as_deref(), Some("3 endpoints on 2 named domains"));

    for (names, count, reach, words) in [
        (vec!["eth9"], 1, Reach::Network, "no eth9; available: docker0, enp75s0"),
        (vec!["lo", "lo"], 2, Reach::SameHost, "2 are named, but there are 1: lo"),
        (vec!["ens6"], 1, Reach::SameHost, "no ens6; available: lo"),
        (vec!["ens6", "ens6"], 2, Reach::Network, "ens6 is named twice"),
        (vec!["ens6", "enp75s0"], 1, Reach::Network, "2 are named for 1 rails"),
    ] {
        let error = run(host(), &request("tcp", count, reach, &explicit(&names))).expect_err(words).to_string();
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn silly_counts_are_refused() {
    for count in [0, 65, usize::MAX] {
        let error = run(host(), &request("tcp", count, Reach::SameHost, &[])).expect_err("refused").to_string();
        assert!(error.contains("1 to 64"), "{error}");
    }
}

#[test]
fn shared_memory_is_local() {
    let mut domain = efa(1, "shm");
    (domain.provider, domain.family, domain.pci) = ("shm".to_owned(), AddressFamily::Text, None);
    assert!(run(vec![domain.clone()], &request("shm", 2, Reach::SameHost, &[])).is_ok());
    assert!(run(vec![domain], &request("shm", 2, Reach::Network, &[])).is_err());
}

proptest! {
    #[test]
    fn any_count_gets_distinct_nics_or_fails(count in 1usize..=64, rank in 0usize..16, size in 0usize..16, gpu: bool) {
        let nearest_to = if gpu { "0000:53:00.0".parse().ok() } else { None };
        let request =
            Request { nearest_to, local_rank: rank, local_size: size, ..request("efa", count, Reach::Network, &[]) };
        let plan = match run(p5(), &request) {
            Ok(plan) => plan,
            Err(error) => {
                prop_assert!(count > 8 && error.to_string().contains("NICs, but there are 8"));
                return Ok(());
            }
        };
        prop_assert_eq!(plan.domains.len(), count);
        let mut names = chosen(&plan);
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), plan.distinct);
        prop_assert!(count <= 8 && plan.distinct == count);
    }

    #[test]
    fn shares_are_disjoint_if_nics_suffice(count in 1usize..5, size in 1usize..9, spare in 0usize..8) {
        let tied = count * size + spare;
        let starts: Vec<_> = (0..size).map(|rank| share(tied, count, rank, size)).collect();
        for pair in starts.windows(2) {
            prop_assert!(pair[0] + count <= pair[1]);
        }
        prop_assert!(starts.iter().all(|start| start + count <= tied));
    }

    #[test]
    fn rotation_stays_within_list(tied in 1usize..64, count in 1usize..65, rank in 0usize..64, size in 0usize..64) {
        prop_assert!(share(tied, count, rank, size) < tied);
    }
}
