//! Locations of the endpoints of a run, as found by a process that may inspect the run's processes.

use std::collections::HashSet;
use std::path::Path;

use nix::unistd::Pid;

use crate::common::children;

/// Location of a rail of a process.
#[derive(Clone, Debug)]
pub enum RailAddress {
    /// A port that the process listens on: libfabric's tcp provider, or the ranks' own protocol.
    Port(u16),
    /// A queue pair of a software NIC: the NIC's address, the pair's number and its key.
    Pair([u8; 16], u16, u32),
}

/// An endpoint of a process.
#[derive(Clone, Debug)]
pub struct ProcessEndpoint {
    /// The process that owns the endpoint.
    pub pid: Pid,
    pub place: RailAddress,
    /// Addresses of the process's writable memory.
    pub mapped: Vec<u64>,
}

impl ProcessEndpoint {
    /// Returns the endpoint's address, in the format of the attacker's own address.
    pub fn address(&self, own: &[u8]) -> Vec<u8> {
        let mut address = own.to_vec();
        match &self.place {
            // `sockaddr_in`: family, port, address.
            RailAddress::Port(port) => {
                address[2..8].copy_from_slice(&[&port.to_be_bytes()[..], &[127, 0, 0, 1]].concat())
            }
            // `efa_ep_addr`: the NIC's address, number, two bytes of padding, key.
            RailAddress::Pair(card, number, key) => {
                address[..16].copy_from_slice(card);
                address[16..18].copy_from_slice(&number.to_ne_bytes());
                address[20..24].copy_from_slice(&key.to_ne_bytes());
            }
        }
        address
    }
}

/// Returns whether a process is alive: a zombie has no memory.
pub fn is_there(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("VmRSS:"))
}

/// Returns the resident memory of a process in KiB.
pub fn resident(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}

/// Returns the endpoints of a process and of its children, over this provider.
pub fn of(parent: Pid, provider: &str) -> Vec<ProcessEndpoint> {
    let all: Vec<Pid> = [parent].into_iter().chain(children(parent)).collect();
    let found = if provider == "tcp" { all.iter().flat_map(|pid| ports(*pid)).collect() } else { pairs(&all) };
    let whole = |(pid, place)| ProcessEndpoint { pid, place, mapped: mapped(pid) };
    found.into_iter().map(whole).collect()
}

/// Returns the start addresses of the ranges that a process can write.
fn mapped(pid: Pid) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let start = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        rest.starts_with("rw").then(|| u64::from_str_radix(range.split_once('-')?.0, 16).ok())?
    };
    maps.lines().filter_map(start).collect()
}

/// Returns the ports that a process listens on.
fn ports(pid: Pid) -> Vec<(Pid, RailAddress)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let owned: HashSet<String> = files
        .filter_map(|file| {
            Some(
                std::fs::read_link(file.path())
                    .ok()?
                    .to_str()?
                    .strip_prefix("socket:[")?
                    .trim_end_matches(']')
                    .to_owned(),
            )
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // 0A: the socket listens.
        let is_ours = words.get(3) == Some(&"0A") && owned.contains(*words.get(9)?);
        is_ours.then(|| u16::from_str_radix(words[1].rsplit_once(':')?.1, 16).ok())?
    };
    table.lines().filter_map(port).map(|port| (pid, RailAddress::Port(port))).collect()
}

/// Returns the queue pairs of software NICs, from the named pages that the processes of a user share: each names the
/// process and the file descriptor of the queues (crates/soft_efa/src/share.rs).
fn pairs(of: &[Pid]) -> Vec<(Pid, RailAddress)> {
    let folder = format!("/dev/shm/soft-efa-{}", nix::unistd::geteuid());
    let files = std::fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten();
    let pair = |file: std::fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        let (card, number) = name.strip_prefix("qp-")?.split_once('-')?;
        let card: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(card.get(2 * at..2 * at + 2)?, 16).ok()).collect::<Option<_>>()?;
        let owner = std::fs::read(file.path()).ok()?;
        let owner = std::str::from_utf8(owner.split(|byte| *byte == b'\n').next()?).ok()?;
        let (process, descriptor) = owner.split_once(' ')?;
        let memory = format!("/proc/{process}/fd/{descriptor}");
        // The start of the memory: eight numbers including the key, and the state; see crates/soft_efa/src/queue.rs.
        let mut head = [0; 36];
        std::io::Read::read_exact(&mut std::fs::File::open(memory).ok()?, &mut head).ok()?;
        let word = |at: usize| u32::from_ne_bytes(head[4 * at..4 * at + 4].try_into().unwrap());
        let (pid, key, is_ready) = (Pid::from_raw(word(3) as i32), word(7), word(8) == 1);
        (is_ready && of.contains(&pid))
            .then(|| (pid, RailAddress::Pair(card.try_into().unwrap(), number.parse().unwrap(), key)))
    };
    files.filter_map(pair).collect()
}
