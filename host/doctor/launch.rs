//! Checks of the launch and connection of ranks, and of whether transfers work at all.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_bootstrap::{BootstrapKind, Launcher};
use ginlab_fabric::discover::leaves_the_machine;

pub fn launch(machine: &Machine) -> Checked {
    let variable = |name: &str| machine.variable(name);
    let Some(mpi) = &machine.asked.mpi else { return skipped("a recorded machine has no program") };
    let Some(launcher) = Launcher::detect(&variable) else {
        let with = if mpi.is_empty() { "without MPI".to_owned() } else { format!("with {mpi}") };
        return ok(format!("no launcher; this program is built {with}"));
    };
    let several = launcher.started_several();
    let found = format!(
        "{} started {}",
        launcher.name,
        launcher.size.map_or("ranks".to_owned(), |size| format!("{size} ranks"))
    );
    let tcp = ["RANK", "WORLD_SIZE", "MASTER_ADDR"].iter().all(|name| machine.variable(name).is_some());
    if mpi.is_empty() {
        return if several && !tcp {
            fail(
                format!("{found}; this program is built without MPI"),
                "make build FEATURES=mpi, or set RANK, WORLD_SIZE, MASTER_ADDR and GINLAB_TOKEN",
            )
        } else {
            ok(format!("{found}; ranks by {}", BootstrapKind::Tcp))
        };
    }
    // srun without a suitable plugin does not configure MPI, so that each task assumes that it is rank 0 of 1.
    let spoken =
        ["PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE"].iter().any(|name| machine.variable(name).is_some());
    if launcher.name == "srun" && several && !spoken && !tcp {
        let mend = if machine.in_container() {
            "srun --mpi=pmix, and enroot's hook on every node: ln -s /usr/share/enroot/hooks.d/50-slurm-pmi.sh /etc/enroot/hooks.d/"
        } else {
            "srun --mpi=pmix (srun --mpi=list shows the available types)"
        };
        return fail(format!("{found} without PMI or PMIx: MPI sees one rank"), mend);
    }
    if let Some(folder) = pmix_folder_missing(machine) {
        return fail(
            format!(
                "{found} by PMIx, but its directory {folder} is not in this container: MPI_Init fails or sees one rank"
            ),
            "link enroot's hook on every node: ln -s /usr/share/enroot/hooks.d/50-slurm-pmi.sh /etc/enroot/hooks.d/",
        );
    }
    let tasks = machine.variable("SLURM_NTASKS_PER_NODE").and_then(|text| text.parse::<usize>().ok());
    let gpus = machine.usable_gpus().len();
    if let Some(tasks) = tasks.filter(|tasks| gpus > 0 && *tasks > gpus) {
        return warn(format!("{found}; {tasks} tasks per node share {gpus} GPUs"), format!("--ntasks-per-node={gpus}"));
    }
    ok(format!("{found}; this program is built with {mpi}"))
}

/// Returns the directory through which a rank reaches Slurm's PMIx server, if it is not visible in this container.
/// Containers are started by pyxis. The directory and the PMIX_ variables are passed in by a hook of enroot that is not
/// enabled by default.
fn pmix_folder_missing(machine: &Machine) -> Option<String> {
    let folder = machine.variable("PMIX_SERVER_TMPDIR")?;
    let missing = machine.in_container() && machine.exists("proc") && !machine.exists(folder.trim_start_matches('/'));
    missing.then_some(folder)
}

pub fn network(machine: &Machine) -> Checked {
    if !machine.exists("sys/class/net") {
        return skipped("/sys/class/net cannot be read");
    }
    let outward = machine.names("sys/class/net").into_iter().filter(|name| leaves_the_machine(name));
    let states: Vec<(String, Option<String>)> = outward
        .map(|name| {
            let state = machine.text(&format!("sys/class/net/{name}/operstate"));
            (name, state)
        })
        .collect();
    if !states.is_empty() && states.iter().all(|(_, state)| state.is_none()) {
        return skipped("/sys/class/net/*/operstate cannot be read");
    }
    let is_up = |state: &Option<String>| state.as_deref().is_some_and(|state| state == "up" || state == "unknown");
    let up: Vec<String> = states.into_iter().filter(|(_, state)| is_up(state)).map(|(name, _)| name).collect();
    if let Some(wanted) = &machine.wanted.interfaces {
        let names = |name: &String| {
            wanted.split(',').any(|part| part.strip_suffix('*').map_or(part == name, |start| name.starts_with(start)))
        };
        if !up.iter().any(names) {
            return fail(
                format!("--bootstrap-if {wanted} matches none of {}", up.join(", ")),
                format!("--bootstrap-if {}", up.first().map_or("NAME", String::as_str)),
            );
        }
    }
    if up.is_empty() {
        return warn("no interface to other machines is up: all ranks must run on this machine", "ip link set NAME up");
    }
    let found = format!("up: {}", up.join(", "));
    match &machine.asked.addresses {
        // Ranks can also connect by address; only connections by host name fail.
        Some(Err(why)) => warn(
            format!("{found}; this host's name {:?} cannot be resolved: {why}", machine.host),
            format!("echo \"$(hostname -I | cut -d' ' -f1) {}\" >>/etc/hosts", machine.host),
        ),
        Some(Ok(addresses)) if addresses.iter().all(std::net::IpAddr::is_loopback) => warn(
            format!("{found}; this host's name resolves to its loopback, which no peer can reach"),
            "set MASTER_ADDR to an address instead of this host's name",
        ),
        Some(Ok(addresses)) => ok(format!("{found}; {} is {}", machine.host, addresses[0])),
        None => ok(found),
    }
}

pub fn smoke(machine: &Machine) -> Checked {
    let Some(trials) = &machine.asked.trials else { return skipped("not tested on a recorded machine") };
    let tried: Vec<_> = trials.iter().filter(|trial| !trial.gpu).collect();
    let untried = machine.asked.untried.as_ref();
    if tried.is_empty() {
        return skipped(untried.map_or("not tested (--no-smoke)".to_owned(), |why| format!("not tested: {why}")));
    }
    match tried.iter().find_map(|trial| Some((trial, trial.outcome.as_ref().err()?))) {
        Some((trial, why)) => {
            fail(format!("{}: {why}", trial.rail), "fix the problems above this line, then run: ginlab write --np 2")
        }
        None => {
            let names: Vec<&str> = tried.iter().map(|trial| trial.rail.as_str()).collect();
            let shown = if names.len() > 6 {
                format!("{} and {} more", names[..5].join(", "), names.len() - 5)
            } else {
                names.join(", ")
            };
            let untried = untried.map_or(String::new(), |why| format!("; not tested: {why}"));
            ok(format!("written to itself and verified: {shown}{untried}"))
        }
    }
}
