//! Where the endpoints of a run are, as somebody finds out who may look at its processes.

use std::collections::HashSet;
use std::path::Path;

use nix::unistd::Pid;

use crate::common::children;

/// Where a rail of a process can be met.
#[derive(Clone, Debug)]
pub enum Place {
    /// A port that it listens on: libfabric's tcp provider, or the ranks' own words.
    Port(u16),
    /// A queue pair of a card in software: the card's address, the pair's number and its key.
    Pair([u8; 16], u16, u32),
}

/// An endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Whose it is.
    pub pid: Pid,
    pub place: Place,
    /// Where that process has memory that can be written.
    pub mapped: Vec<u64>,
}

impl Endpoint {
    /// Its address, in the form of an own one.
    pub fn address(&self, own: &[u8]) -> Vec<u8> {
        let mut address = own.to_vec();
        match &self.place {
            // `sockaddr_in`: family, port, address.
            Place::Port(port) => address[2..8].copy_from_slice(&[&port.to_be_bytes()[..], &[127, 0, 0, 1]].concat()),
            // `efa_ep_addr`: the card's address, number, two bytes of nothing, key.
            Place::Pair(card, number, key) => {
                address[..16].copy_from_slice(card);
                address[16..18].copy_from_slice(&number.to_ne_bytes());
                address[20..24].copy_from_slice(&key.to_ne_bytes());
            }
        }
        address
    }
}

/// Whether a process is there and has not ended: what has ended and is not waited for has no memory any more.
pub fn is_there(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("VmRSS:"))
}

/// KiB of memory that a process holds.
pub fn resident(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}

/// The endpoints of a process and of its children, over this provider.
pub fn of(parent: Pid, provider: &str) -> Vec<Endpoint> {
    let all: Vec<Pid> = [parent].into_iter().chain(children(parent)).collect();
    let found = if provider == "tcp" { all.iter().flat_map(|pid| ports(*pid)).collect() } else { pairs(&all) };
    let whole = |(pid, place)| Endpoint { pid, place, mapped: mapped(pid) };
    found.into_iter().map(whole).collect()
}

/// First bytes of the stretches that a process can write.
fn mapped(pid: Pid) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let start = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        rest.starts_with("rw").then(|| u64::from_str_radix(range.split_once('-')?.0, 16).ok())?
    };
    maps.lines().filter_map(start).collect()
}

/// Ports that a process listens on.
fn ports(pid: Pid) -> Vec<(Pid, Place)> {
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
        // 0A: it listens.
        let is_ours = words.get(3) == Some(&"0A") && owned.contains(*words.get(9)?);
        is_ours.then(|| u16::from_str_radix(words[1].rsplit_once(':')?.1, 16).ok())?
    };
    table.lines().filter_map(port).map(|port| (pid, Place::Port(port))).collect()
}

/// Queue pairs of cards in software, by the pages that the processes of a user share.
fn pairs(of: &[Pid]) -> Vec<(Pid, Place)> {
    let folder = format!("/dev/shm/soft-efa-{}", nix::unistd::geteuid());
    let files = std::fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten();
    let pair = |file: std::fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        let (card, number) = name.strip_prefix("qp-")?.split_once('-')?;
        let card: Vec<u8> =
            (0..16).map(|at| u8::from_str_radix(card.get(2 * at..2 * at + 2)?, 16).ok()).collect::<Option<_>>()?;
        // The head of the page: eight numbers before the key's, and the state; see crates/soft_efa/src/queue.rs.
        let mut head = [0; 36];
        std::io::Read::read_exact(&mut std::fs::File::open(file.path()).ok()?, &mut head).ok()?;
        let word = |at: usize| u32::from_ne_bytes(head[4 * at..4 * at + 4].try_into().unwrap());
        let (pid, key, is_ready) = (Pid::from_raw(word(3) as i32), word(7), word(8) == 1);
        (is_ready && of.contains(&pid))
            .then(|| (pid, Place::Pair(card.try_into().unwrap(), number.parse().unwrap(), key)))
    };
    files.filter_map(pair).collect()
}
