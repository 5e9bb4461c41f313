//! Checks of the setup of this machine, presented as a table. Each check reports what it examined, its result, and a
//! command that fixes the problem.
//!
//! A check is a function of a [`Machine`]: files below a root, environment variables, and query results that only a
//! running system provides. Therefore, each check can be tested on a recorded directory tree, and a user's recorded
//! tree is examined like a real machine. A check that cannot read its input reports that it was skipped, and never
//! passes for that reason.

mod affinity;
mod container;
mod counters;
mod efa;
mod environment;
mod fit;
pub mod gate;
mod gpu;
pub mod instances;
mod kernel_log;
mod launch;
mod libraries;
mod limits;
mod machine;
pub mod near;
mod nvlink;
pub mod peers;
mod severity;
mod sharing;
#[cfg(test)]
mod tests;
mod took;
pub mod tournament;
pub mod trial;
pub mod verbs;

pub use fit::only_emulated;
pub use machine::{GpuFabric, GpuState, LinkErrors, Machine, RemappedRows, Requirements, SystemAnswers};
pub use severity::Severity;
pub use took::Took;

use serde::{Deserialize, Serialize};

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CheckState {
    /// The check did not run, or its subject is not observable from this process.
    Skipped,
    /// No problem was found.
    Ok,
    /// Runs work, but their results may be distorted.
    Warn,
    /// Runs over the requested hardware fail, or do not measure what they claim.
    Fail,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Outcome of the check.
    pub state: CheckState,
    /// Short description of what was found.
    pub found: String,
    /// Remedy: a command, or a short description if there is none; empty if no remedy is needed.
    pub mend: String,
}

/// Result of a check or of one of its steps. An error ends the check and becomes its result.
type Checked<T = Said> = Result<T, Said>;

/// Returns the result of a check that found no problem.
fn ok(found: impl Into<String>) -> Checked {
    Ok(Said { state: CheckState::Ok, found: found.into(), mend: String::new() })
}

/// Returns the result of a check that could not be performed.
fn skipped<T>(why: impl Into<String>) -> Checked<T> {
    Err(Said { state: CheckState::Skipped, found: why.into(), mend: String::new() })
}

fn warn(found: impl Into<String>, mend: impl Into<String>) -> Checked {
    Err(Said { state: CheckState::Warn, found: found.into(), mend: mend.into() })
}

fn fail<T>(found: impl Into<String>, mend: impl Into<String>) -> Checked<T> {
    Err(Said { state: CheckState::Fail, found: found.into(), mend: mend.into() })
}

/// A check of a machine.
pub struct Check {
    /// Name of the check, for tables and `--only`.
    pub name: &'static str,
    /// Description of what the check examines.
    pub looks_at: &'static str,
    run: fn(&Machine) -> Checked,
}

/// A check with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Host name of the machine.
    pub host: String,
    /// Name of the check.
    pub check: String,
    /// Outcome of the check.
    pub state: CheckState,
    /// Description of what the check examines.
    pub looks_at: String,
    /// Short description of what was found.
    pub found: String,
    /// Remedy; empty if none is needed.
    pub mend: String,
    /// Action that the finding requires.
    pub severity: Severity,
}

const fn check(name: &'static str, looks_at: &'static str, run: fn(&Machine) -> Checked) -> Check {
    Check { name, looks_at, run }
}

/// All checks of a machine, in the order in which problems should be fixed: limits, then NICs, then the software that
/// uses them.
pub const CHECKS: [Check; 26] = [
    check("memlock", "locked memory allowed for this process", limits::memlock),
    check("memory", "huge pages, and memory available to this process", limits::memory),
    check("shm", "size of /dev/shm, open files, ptrace scope", limits::shm),
    check("efa-devices", "EFA devices on the PCI bus, compared with the instance type; their driver", efa::devices),
    check("efa-driver", "modules efa, ib_uverbs and ib_core, and their device nodes", efa::driver),
    check("efa-links", "each RDMA device: owned by the efa driver, link active, rate of its port", efa::links),
    check("libfabric", "the loaded libfabric, and a domain for each EFA device", libraries::libfabric),
    check(
        "rma",
        "capabilities of the domains: RMA, immediates, delivery complete, and direct access to GPU memory",
        libraries::capabilities,
    ),
    check("gpu-direct", "path from an EFA device to GPU memory: p2p attribute, driver, dma-buf", gpu::direct),
    check(
        "gpu-async",
        "requirements of kernels that drive EFA devices: PeerMappingOverride, EFA installer",
        gpu::direct_async,
    ),
    check("gpu-register", "2 MiB of GPU memory registered with each EFA device and rail, and written", gpu::register),
    check("gdrcopy", "GDRCopy: module, device node, library, a page mapped and read back", gpu::gdrcopy),
    check("gpu", "number of GPUs, driver, persistence, clocks, ECC, remapped rows", gpu::state),
    check("xid", "Xid errors of the GPUs in the kernel's log", kernel_log::xid),
    check(
        "nvlink",
        "the fabric configured, every NVLink up and without errors, and the same number on all GPUs",
        nvlink::nvlink,
    ),
    check(
        "mps",
        "MPS, which runs PEs that share a GPU concurrently: a server, or the program that starts one",
        sharing::mps,
    ),
    check("pcie", "width of each PCIe link, IOMMU", affinity::pcie),
    check("affinity", "NUMA nodes of GPUs and NICs, and the cores that this process may use", affinity::cores),
    check("visible", "the GPUs that CUDA shows, compared with those on the PCI bus", gpu::visible),
    check("environment", "variables that change the behaviour of libfabric and NCCL", environment::variables),
    check("launch", "the launcher's variables, compared with this program's build", launch::launch),
    check("network", "interfaces that connect ranks, and the address of the host's name", launch::network),
    check("container", "contents of a container: device nodes, IPC_LOCK", container::container),
    check("toolchain", "the kernels' PTX in this program (if there is a GPU, or with --dev)", libraries::toolchain),
    check(
        "counters",
        "counters of the EFA devices: drops and retransmissions per packet, impaired connections, growth in the trials",
        counters::counters,
    ),
    check("smoke", "a write from each rail to itself, and puts by the proxy, verified", launch::smoke),
];

/// Runs the checks named in `only`, or all checks if it is empty.
#[must_use]
pub fn examine(machine: &Machine, only: &[String]) -> Vec<Finding> {
    let wanted = |check: &&Check| only.is_empty() || only.iter().any(|name| name == check.name);
    let finding = |check: &Check| {
        let finding = of(&machine.host, check.name, check.looks_at, (check.run)(machine));
        match check.name {
            "xid" => Finding { severity: kernel_log::severity(machine), ..finding },
            // A service, and not the hardware.
            "nvlink" if nvlink::unconfigured(machine).is_some() => {
                Finding { severity: finding.severity.min(Severity::Configure), ..finding }
            }
            _ => finding,
        }
    };
    CHECKS.iter().filter(wanted).map(finding).collect()
}

fn of(host: &str, check: &str, looks_at: &str, checked: Checked) -> Finding {
    let (Ok(Said { state, found, mend }) | Err(Said { state, found, mend })) = checked;
    let (host, check, looks_at) = (host.to_owned(), check.to_owned(), looks_at.to_owned());
    let severity = Severity::of(&check, state);
    Finding { host, check, state, looks_at, found, mend, severity }
}

/// Returns the worst state. `None` if there are no findings.
#[must_use]
pub fn worst(findings: &[Finding]) -> Option<CheckState> {
    findings.iter().map(|finding| finding.state).max()
}
