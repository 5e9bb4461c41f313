//! How ranks are started and meet, and whether anything moves at all.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_bootstrap::{Kind, Launcher};
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
            ok(format!("{found}; ranks by {}", Kind::Tcp))
        };
    }
    // srun without a plugin for it leaves MPI alone: each task believes that it is rank 0 of 1.
    let spoken =
        ["PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE"].iter().any(|name| machine.variable(name).is_some());
    if launcher.name == "srun" && several && !spoken && !tcp {
        let mend = if machine.in_container() {
            "srun --mpi=pmix, and enroot's hook on every node: ln -s /usr/share/enroot/hooks.d/50-slurm-pmi.sh /etc/enroot/hooks.d/"
        } else {
            "srun --mpi=pmix (srun --mpi=list shows what there is)"
        };
        return fail(format!("{found} without PMI or PMIx: MPI sees one rank"), mend);
    }
    if let Some(folder) = pmix_folder_missing(machine) {
        return fail(
            format!(
                "{found} by PMIx, and its folder {folder} is not in this container: MPI_Init fails or sees one rank"
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

/// The folder by which a rank reaches Slurm's PMIx server, where this container does not show it: pyxis starts the container, and a
/// hook of enroot's that is not linked by default mounts the folder and carries the PMIX_ variables.
fn pmix_folder_missing(machine: &Machine) -> Option<String> {
    let folder = machine.variable("PMIX_SERVER_TMPDIR")?;
    let missing = machine.in_container() && machine.exists("proc") && !machine.exists(folder.trim_start_matches('/'));
    missing.then_some(folder)
}

pub fn network(machine: &Machine) -> Checked {
    let up: Vec<String> = machine
        .names("sys/class/net")
        .into_iter()
        .filter(|name| {
            let state = machine.text(&format!("sys/class/net/{name}/operstate"));
            leaves_the_machine(name) && state.is_some_and(|state| state == "up" || state == "unknown")
        })
        .collect();
    if !machine.exists("sys/class/net") {
        return skipped("/sys/class/net cannot be read");
    }
    if let Some(wanted) = &machine.wanted.interfaces {
        let names = |name: &String| {
            wanted.split(',').any(|part| part.strip_suffix('*').map_or(part == name, |start| name.starts_with(start)))
        };
        if !up.iter().any(names) {
            return fail(
                format!("--bootstrap-if {wanted} names none of {}", up.join(", ")),
                format!("--bootstrap-if {}", up.first().map_or("NAME", String::as_str)),
            );
        }
    }
    if up.is_empty() {
        return warn(
            "no interface that leaves this machine is up: ranks meet on this machine alone",
            "ip link set NAME up",
        );
    }
    let found = format!("up: {}", up.join(", "));
    match &machine.asked.addresses {
        // Ranks also meet by addresses; what goes by names does not.
        Some(Err(why)) => warn(
            format!("{found}; this host's name {:?} leads nowhere: {why}", machine.host),
            format!("echo \"$(hostname -I | cut -d' ' -f1) {}\" >>/etc/hosts", machine.host),
        ),
        Some(Ok(addresses)) if addresses.iter().all(std::net::IpAddr::is_loopback) => warn(
            format!("{found}; this host's name leads to its loopback, where no peer finds it"),
            "MASTER_ADDR as an address, not as this host's name",
        ),
        Some(Ok(addresses)) => ok(format!("{found}; {} is {}", machine.host, addresses[0])),
        None => ok(found),
    }
}

pub fn smoke(machine: &Machine) -> Checked {
    let Some(trials) = &machine.asked.trials else { return skipped("nothing is tried on a recorded machine") };
    let tried: Vec<_> = trials.iter().filter(|trial| !trial.gpu).collect();
    if tried.is_empty() {
        return skipped("nothing was tried (--no-smoke)");
    }
    match tried.iter().find_map(|trial| Some((trial, trial.outcome.as_ref().err()?))) {
        Some((trial, why)) => {
            fail(format!("{}: {why}", trial.rail), "mend what stands above this line, then: ginlab write --np 2")
        }
        None => {
            let names: Vec<&str> = tried.iter().map(|trial| trial.rail.as_str()).collect();
            let shown = if names.len() > 6 {
                format!("{} and {} more", names[..5].join(", "), names.len() - 5)
            } else {
                names.join(", ")
            };
            ok(format!("written to oneself and verified: {shown}"))
        }
    }
}
