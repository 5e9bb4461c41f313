//! Checks of resource limits of this process.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_base::size;
use ginlab_fabric::filter;

const GIB: u64 = 1 << 30;

/// Returns the current limit from a line of /proc/self/limits; `u64::MAX` for "unlimited".
fn limit(machine: &Machine, name: &str) -> Option<u64> {
    let text = machine.text("proc/self/limits")?;
    let words = text.lines().find_map(|line| line.strip_prefix(name))?;
    match words.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

pub fn memlock(machine: &Machine) -> Checked {
    const MEND: &str = "ulimit -l unlimited (Slurm: LimitMEMLOCK=infinity in slurmd's unit, #SBATCH --propagate=NONE; \
         docker: --ulimit memlock=-1; pods: securityContext.capabilities.add: [IPC_LOCK])";
    match limit(machine, "Max locked memory") {
        None => skipped("/proc/self/limits cannot be read"),
        Some(u64::MAX) => ok("unlimited"),
        Some(bytes) if bytes >= 16 * GIB => ok(format!("{} may be locked", size::human(bytes))),
        Some(bytes) if machine.locks_without_limit().is_none() => skipped(format!(
            "{} may be locked; cannot detect whether CAP_IPC_LOCK lifts the limit (CapEff of /proc/self/status)",
            size::human(bytes)
        )),
        Some(bytes) if machine.locks_without_limit() == Some(true) => {
            ok(format!("{} may be locked, and CAP_IPC_LOCK lifts the limit", size::human(bytes)))
        }
        Some(bytes) if machine.means_efa() => {
            fail(format!("{} may be locked: registration for EFA needs no limit", size::human(bytes)), MEND)
        }
        Some(bytes) => {
            warn(format!("{} may be locked; large registrations fail below 16 GiB", size::human(bytes)), MEND)
        }
    }
}

pub fn memory(machine: &Machine) -> Checked {
    // Number of huge pages that pods of EFA clusters usually request: 5120 MiB.
    const PAGES: u64 = 2560;
    // A node with eight GPUs and 8 GiB ran out of memory (awslabs/awsome-distributed-ai #312); 4 GiB per GPU leaves a
    // margin.
    const EACH: u64 = 4 * GIB;
    let number = |name: &str| -> Option<u64> {
        machine.text(&format!("sys/kernel/mm/hugepages/hugepages-2048kB/{name}"))?.parse().ok()
    };
    let Some(available) = ginlab_base::memory::available_in(&machine.root) else {
        return skipped("/proc/meminfo cannot be read");
    };
    let pages = number("free_hugepages");
    let huge = match (number("nr_hugepages"), pages) {
        (Some(all), Some(free)) => format!("{free} of {all} huge pages of 2 MiB are free"),
        _ => "huge pages are unknown".to_owned(),
    };
    let found = format!("{} of memory are available; {huge}", size::human(available));
    if !machine.means_efa() {
        return ok(found);
    }
    let gpus = machine.usable_gpus().len().max(1);
    let needed = EACH * gpus as u64;
    if available < needed {
        let mend = "give the container or the job more memory (requests and limits: memory: 64Gi; sbatch --mem=0)";
        return fail(format!("{found}; {gpus} ranks over EFA need {}", size::human(needed)), mend);
    }
    match pages {
        Some(free) if free < PAGES => warn(
            format!("{found}; EFA's buffers use up to {PAGES}"),
            "sysctl -w vm.nr_hugepages=5128 (pods: hugepages-2Mi: 5120Mi)",
        ),
        _ => ok(found),
    }
}

pub fn shm(machine: &Machine) -> Checked {
    let (Some(mounts), Some(files)) = (machine.text("proc/self/mountinfo"), limit(machine, "Max open files")) else {
        return skipped("/proc/self/mountinfo or /proc/self/limits cannot be read");
    };
    let total = || machine.line("proc/meminfo", "MemTotal")?.strip_suffix("kB")?.trim().parse::<u64>().ok();
    // Fields: ..., mount point (5th), options; after " - " the type, the source, and options with a size if one was
    // set.
    let mount = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/dev/shm"));
    let size = mount.map(|line| {
        let size = line.split([' ', ',']).find_map(|option| option.strip_prefix("size="));
        // The default size is half of the memory.
        size.and_then(|text| size::parse(text).ok()).or_else(|| Some(total()? * 1024 / 2)).unwrap_or(u64::MAX)
    });
    // A directory of the root file system also suffices.
    let size = size.or_else(|| machine.exists("dev/shm").then_some(u64::MAX));
    // A kernel without Yama has no file and no restriction.
    let told = machine.text("proc/sys/kernel/yama/ptrace_scope");
    let scope = told.unwrap_or_else(|| if machine.exists("proc/sys/kernel") { "0" } else { "unknown" }.to_owned());
    // ginlab disables it unless the variable is set.
    let shared_memory =
        machine.variable("FI_EFA_ENABLE_SHM_TRANSFER").is_some_and(|value| filter::integer(&value) != 0);
    let text = |bytes: u64| if bytes == u64::MAX { "of unknown size".to_owned() } else { size::human(bytes) };
    let found = format!("/dev/shm {}, {files} open files, ptrace scope {scope}", size.map_or("none".to_owned(), text));
    match size {
        None => fail(found, "mount -t tmpfs -o size=8G tmpfs /dev/shm"),
        Some(size) if size < GIB => warn(
            format!("{found}; ranks of one machine share memory in it"),
            "mount -o remount,size=8G /dev/shm (docker: --shm-size 8g)",
        ),
        _ if files < 4096 => warn(format!("{found}; each rail and each rank uses several files"), "ulimit -n 65536"),
        _ if !["0", "unknown"].contains(&scope.as_str()) && machine.means_efa() && shared_memory => {
            let text = "FI_EFA_ENABLE_SHM_TRANSFER copies by cross-memory attach, which this scope forbids";
            warn(
                format!("{found}; {text}"),
                "unset FI_EFA_ENABLE_SHM_TRANSFER, or sysctl -w kernel.yama.ptrace_scope=0",
            )
        }
        _ => ok(found),
    }
}
