//! What stands in the way of a run on this machine: a table of checks, each with what was looked at, how it stands, and the
//! command that mends it.
//!
//! A check is a function of a [`Machine`]: files below a root, environment variables, and answers that only a running system
//! gives. So each is tested on a recorded tree, and a tree that somebody sends is examined as the machine itself would be.
//! A check that cannot see what it asks for is skipped and says so; it never passes for that.

mod affinity;
mod efa;
mod environment;
mod fit;
mod gpu;
pub mod instances;
mod launch;
mod libraries;
mod limits;
mod machine;
pub mod peers;
mod sharing;
#[cfg(test)]
mod tests;
pub mod trial;
pub mod verbs;

pub use fit::only_emulated;
pub use machine::{Asked, GpuState, LinkErrors, Machine, Took, Wanted};

use serde::{Deserialize, Serialize};

/// How a check stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// It was not looked at, or cannot be seen from here: nothing is known.
    Skipped,
    /// Nothing is in the way.
    Ok,
    /// A run works, and its figures may suffer.
    Warn,
    /// A run over what was asked for does not work, or is not what it seems.
    Fail,
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// How it stands.
    pub state: State,
    /// What was found, in a few words.
    pub found: String,
    /// What mends it: a command, or where there is none a few words; empty where nothing is to be mended.
    pub mend: String,
}

/// What a check says in the end, or what one of its steps found: an error ends the check, and is what it says.
type Checked<T = Said> = Result<T, Said>;

/// Nothing is in the way.
fn ok(found: impl Into<String>) -> Checked {
    Ok(Said { state: State::Ok, found: found.into(), mend: String::new() })
}

/// Nothing is known.
fn skipped<T>(why: impl Into<String>) -> Checked<T> {
    Err(Said { state: State::Skipped, found: why.into(), mend: String::new() })
}

fn warn(found: impl Into<String>, mend: impl Into<String>) -> Checked {
    Err(Said { state: State::Warn, found: found.into(), mend: mend.into() })
}

fn fail<T>(found: impl Into<String>, mend: impl Into<String>) -> Checked<T> {
    Err(Said { state: State::Fail, found: found.into(), mend: mend.into() })
}

/// One check.
pub struct Check {
    /// Its name in tables, and for `--only`.
    pub name: &'static str,
    /// What it looks at.
    pub looks_at: &'static str,
    run: fn(&Machine) -> Checked,
}

/// A check with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The machine's name.
    pub host: String,
    /// The check's name.
    pub check: String,
    /// How it stands.
    pub state: State,
    /// What the check looks at.
    pub looks_at: String,
    /// What was found.
    pub found: String,
    /// What mends it; empty where nothing is to be mended.
    pub mend: String,
}

const fn check(name: &'static str, looks_at: &'static str, run: fn(&Machine) -> Checked) -> Check {
    Check { name, looks_at, run }
}

/// Every check of one machine, in the order in which a reader mends things: limits before cards before what runs on them.
pub const CHECKS: [Check; 25] = [
    check("memlock", "locked memory that this process may have", limits::memlock),
    check("memory", "huge pages, and memory that this process can get", limits::memory),
    check("shm", "size of /dev/shm, open files, ptrace scope", limits::shm),
    check("efa-devices", "EFA cards on the PCI bus against the instance's number", efa::devices),
    check("efa-driver", "modules efa, ib_uverbs and ib_core, and their device nodes", efa::driver),
    check("efa-links", "each RDMA device: owned by the efa driver, link active", efa::links),
    check("libfabric", "the loaded libfabric, and a domain for each EFA card", libraries::libfabric),
    check(
        "rma",
        "what the domains can do: RMA, immediates, delivery complete, and GPU memory by the card itself",
        libraries::capabilities,
    ),
    check("gpu-direct", "the way from a card to GPU memory: p2p attribute, driver, dma-buf", gpu::direct),
    check(
        "gpu-async",
        "what the GPU-initiated comparison alone needs: PeerMappingOverride, EFA installer",
        gpu::direct_async,
    ),
    check("gpu-register", "2 MiB of GPU memory registered with each card and rail, and written", gpu::register),
    check("gdrcopy", "GDRCopy: module, device node, library, a page mapped and read back", gpu::gdrcopy),
    check("gpu", "driver, persistence, clocks, ECC, Xid", gpu::state),
    check("nvlink", "every NVLink up and without errors, alike on all GPUs", gpu::nvlink),
    check("mps", "what runs PEs that share a GPU side by side: a server, or the program that starts one", sharing::mps),
    check("pcie", "width of each PCIe link, IOMMU", affinity::pcie),
    check("affinity", "NUMA nodes of GPUs and cards, and the cores that this process may use", affinity::cores),
    check("visible", "the GPUs that CUDA shows against those on the PCI bus", gpu::visible),
    check("environment", "variables that change what libfabric and NCCL do", environment::variables),
    check("launch", "the launcher's variables against what this program was built with", launch::launch),
    check("network", "interfaces by which ranks meet, and what the host's name leads to", launch::network),
    check("container", "what a container shows: device nodes, IPC_LOCK", environment::container),
    check("toolchain", "the kernels' PTX in this program (with --dev)", libraries::toolchain),
    check("counters", "the cards' own counters of drops, errors and retransmissions", efa::counters),
    check("smoke", "a write to oneself on each rail, and puts by the proxy, verified", launch::smoke),
];

/// Runs the checks of these names, all of them where none is named.
#[must_use]
pub fn examine(machine: &Machine, only: &[String]) -> Vec<Finding> {
    let wanted = |check: &&Check| only.is_empty() || only.iter().any(|name| name == check.name);
    let finding = |check: &Check| of(&machine.host, check.name, check.looks_at, (check.run)(machine));
    CHECKS.iter().filter(wanted).map(finding).collect()
}

fn of(host: &str, check: &str, looks_at: &str, checked: Checked) -> Finding {
    let (Ok(Said { state, found, mend }) | Err(Said { state, found, mend })) = checked;
    Finding { host: host.to_owned(), check: check.to_owned(), state, looks_at: looks_at.to_owned(), found, mend }
}

/// The worst state; nothing where there is no finding.
#[must_use]
pub fn worst(findings: &[Finding]) -> Option<State> {
    findings.iter().map(|finding| finding.state).max()
}
