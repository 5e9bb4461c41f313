//! Detection of the launcher and of the bootstrap kind from environment variables.

use std::str::FromStr;

use super::error::BootstrapError;

/// Variable that is set only for the children of a `local` job.
pub(super) const RANK: &str = "GINLAB_RANK";

/// Function that returns the value of an environment variable, `None` if it is unset or empty.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns a variable of the process's environment, for [`BootstrapKind::detect`].
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Kind of bootstrap: the method by which the ranks find each other.
///
/// The first paragraph of each value's documentation is its `--help` text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, clap::ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum BootstrapKind {
    /// This program starts the ranks
    ///
    /// All of them run on this machine.
    Local,
    /// mpirun or srun starts the ranks
    ///
    /// Requires the cargo feature `mpi`.
    Mpi,
    /// RANK, WORLD_SIZE and MASTER_ADDR are set
    ///
    /// SkyPilot's variables are accepted as well.
    Tcp,
}

impl BootstrapKind {
    /// Returns the kind that the environment indicates. The innermost launcher takes precedence:
    ///
    /// 1. ginlab itself, for ranks that it started.
    /// 2. torchrun, whose workers also see the variables of the srun that started torchrun.
    /// 3. mpirun or srun.
    /// 4. RANK and WORLD_SIZE.
    /// 5. A SkyPilot job of several nodes.
    ///
    /// Otherwise the kind is `local`. A ginlab built without MPI prefers RANK, WORLD_SIZE and MASTER_ADDR to srun's
    /// variables, since it is run under srun with these set.
    pub fn detect(env: Env) -> BootstrapKind {
        BootstrapKind::detect_with(env, cfg!(feature = "mpi"))
    }

    /// Like [`BootstrapKind::detect`], but rejects incomplete sets of variables.
    ///
    /// # Errors
    /// Returns a usage error if only some of a launcher's variables are set.
    pub fn asked_for(env: Env) -> Result<BootstrapKind, BootstrapError> {
        let kind = BootstrapKind::detect(env);
        if kind == BootstrapKind::Local {
            refuse_half(env)?;
        }
        Ok(kind)
    }

    fn detect_with(env: Env, has_mpi: bool) -> BootstrapKind {
        let set = |names: &[&str]| names.iter().all(|name| env(name).is_some());
        let torchrun = set(&["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"]);
        let complete = set(&["RANK", "WORLD_SIZE", "MASTER_ADDR"]);
        if env(RANK).is_some() {
            BootstrapKind::Local
        } else if torchrun || (complete && !has_mpi) {
            BootstrapKind::Tcp
        } else if Launcher::detect(env).is_some_and(|launcher| has_mpi || launcher.size != Some(1)) {
            BootstrapKind::Mpi
        } else if set(&["RANK", "WORLD_SIZE"]) || several_skypilot_nodes(env) {
            BootstrapKind::Tcp
        } else {
            BootstrapKind::Local
        }
    }
}

/// A process launcher, identified by environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Name for messages.
    pub name: &'static str,
    /// Number of ranks that the launcher started, if the environment contains it.
    pub size: Option<usize>,
    /// Rank of this process, if the environment contains it.
    pub rank: Option<usize>,
}

impl Launcher {
    /// Detects mpirun, mpiexec or srun.
    pub fn detect(env: Env) -> Option<Launcher> {
        let value = |name: &str| env(name).and_then(|text| text.trim().parse().ok());
        let found = |name, size: Option<usize>, rank| Some(Launcher { name, size, rank });
        if env("OMPI_COMM_WORLD_SIZE").is_some() {
            found("mpirun", value("OMPI_COMM_WORLD_SIZE"), value("OMPI_COMM_WORLD_RANK"))
        } else if env("SLURM_STEP_ID").is_some_and(|id| is_srun_step(&id)) && env("SLURM_PROCID").is_some() {
            // Checks this before PMI and PMIx, whose variables srun also sets.
            found("srun", value("SLURM_STEP_NUM_TASKS").or_else(|| value("SLURM_NTASKS")), value("SLURM_PROCID"))
        } else if env("PMI_SIZE").is_some() {
            found("mpiexec", value("PMI_SIZE"), value("PMI_RANK"))
        } else if env("PMIX_RANK").is_some() {
            found("a PMIx launcher", None, value("PMIX_RANK"))
        } else {
            None
        }
    }

    /// Returns whether the launcher started more than one rank, to the extent that the environment shows it.
    pub fn started_several(&self) -> bool {
        self.size.is_some_and(|size| size > 1) || self.rank.is_some_and(|rank| rank > 0)
    }

    fn started(&self) -> String {
        match self.size {
            Some(size) => format!("{size} ranks"),
            None => "several ranks".to_owned(),
        }
    }
}

/// Returns whether `id` is a step that srun started. Slurm numbers its batch script, interactive shell and similar
/// steps at the top of the range.
fn is_srun_step(id: &str) -> bool {
    id.trim().parse::<u32>().is_ok_and(|id| id < 0xffff_fff0)
}

fn several_skypilot_nodes(env: Env) -> bool {
    env("SKYPILOT_NODE_RANK").is_some()
        && env("SKYPILOT_NUM_NODES").and_then(|text| text.trim().parse::<usize>().ok()).is_some_and(|nodes| nodes > 1)
}

/// Returns an error if a launcher's variables are incomplete: the rank without the number of ranks, or the reverse. The
/// launcher's own tools also reject this. Starting a local job instead would start a different job on each rank.
fn refuse_half(env: Env) -> Result<(), BootstrapError> {
    const PAIRS: [(&str, &str); 3] =
        [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
    if env(RANK).is_some() {
        return Ok(());
    }
    // srun sets both variables for each task of a step.
    let step = env("SLURM_STEP_ID").is_some_and(|id| is_srun_step(&id)) && env("SLURM_PROCID").is_none();
    let half = PAIRS.into_iter().find_map(|(rank, size)| match (env(rank), env(size)) {
        (Some(_), None) => Some((rank, size)),
        (None, Some(_)) => Some((size, rank)),
        _ => None,
    });
    if let Some((set, missing)) = half.or(step.then_some(("SLURM_STEP_ID", "SLURM_PROCID"))) {
        return Err(BootstrapError::usage(format!(
            "{set} is set but {missing} is not: a launcher sets both; set {missing}, unset {set} for a job on this \
             machine, or choose the kind of bootstrap"
        )));
    }
    Ok(())
}

/// Returns an error if a launcher started several ranks but this kind of bootstrap sees only one.
pub(super) fn refuse_alone(env: Env, kind: BootstrapKind) -> Result<(), BootstrapError> {
    let Some(launcher) = Launcher::detect(env).filter(Launcher::started_several) else { return Ok(()) };
    let (side, cause) = match kind {
        BootstrapKind::Mpi => (
            "MPI",
            "ginlab was built against another MPI than the one launching it (compare `mpirun --version` with `ldd` of the \
             ginlab binary, or try `srun --mpi=pmix`)",
        ),
        BootstrapKind::Tcp => ("WORLD_SIZE", "set RANK and WORLD_SIZE for every rank, or launch only one"),
        BootstrapKind::Local => {
            ("the local bootstrap", "start ginlab once, because it starts its own ranks, or use the mpi bootstrap")
        }
    };
    let (name, started) = (launcher.name, launcher.started());
    Err(BootstrapError::usage(format!("{name} started {started}, but {side} reports 1: {cause}")))
}

/// Returns the error for the `mpi` bootstrap in a build without MPI.
#[cfg(not(feature = "mpi"))]
pub(super) fn no_mpi(env: Env) -> BootstrapError {
    let why = match Launcher::detect(env) {
        Some(launcher) => format!("{} started {}", launcher.name, launcher.started()),
        None => "the mpi bootstrap was requested".to_owned(),
    };
    BootstrapError::usage(format!(
        "{why}, but this ginlab was built without MPI; build it with `--features mpi`, or use the tcp bootstrap (set \
         RANK, WORLD_SIZE, MASTER_ADDR and GINLAB_TOKEN on every rank)"
    ))
}

/// Returns a required variable.
pub(super) fn required(env: Env, name: &str, needed_by: &str, fix: &str) -> Result<String, BootstrapError> {
    env(name).ok_or_else(|| BootstrapError::usage(format!("{name} is not set, and {needed_by}; {fix}")))
}

/// Returns a required variable that is a number.
pub(super) fn number<T: FromStr>(env: Env, name: &str, needed_by: &str, fix: &str) -> Result<T, BootstrapError> {
    let value = required(env, name, needed_by, fix)?;
    value.trim().parse().map_err(|_| BootstrapError::bad_variable(name, value, "expected a whole number in range"))
}

/// Returns an error for the first key, in rank 0's order, whose value differs from that of rank 0. The error names all
/// ranks with the differing value.
pub(super) fn first_difference(fingerprints: &[Vec<(String, String)>]) -> Option<BootstrapError> {
    let first = fingerprints.first()?;
    let value = |rank: usize, key: &str| {
        let found = fingerprints[rank].iter().find(|(name, _)| name == key);
        found.map_or_else(|| "not given".to_owned(), |(_, value)| format!("{value:?}"))
    };
    let extra = fingerprints.iter().flatten().filter(|(key, _)| !first.iter().any(|(known, _)| known == key));
    for (key, _) in first.iter().chain(extra) {
        let ours = value(0, key);
        let Some(rank) = (1..fingerprints.len()).find(|&rank| value(rank, key) != ours) else { continue };
        let other = value(rank, key);
        let ranks: Vec<usize> = (1..fingerprints.len()).filter(|&rank| value(rank, key) == other).collect();
        return Some(BootstrapError::differ(key, &ours, &other, &ranks));
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn kind(pairs: &[(&str, &str)], has_mpi: bool) -> BootstrapKind {
        BootstrapKind::detect_with(&table(pairs), has_mpi)
    }

    fn table(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        move |name| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    const OMPI: [(&str, &str); 3] = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("PMIX_RANK", "1")];
    const SRUN: [(&str, &str); 3] = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
    const TCP: [(&str, &str); 3] = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
    const SKY: [(&str, &str); 3] =
        [("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")];

    #[test]
    fn innermost_launcher_takes_precedence() {
        for has_mpi in [true, false] {
            assert_eq!(kind(&[], has_mpi), BootstrapKind::Local);
            assert_eq!(kind(&OMPI, has_mpi), BootstrapKind::Mpi);
            assert_eq!(kind(&SRUN, has_mpi), BootstrapKind::Mpi);
            assert_eq!(kind(&[("PMI_SIZE", "2")], has_mpi), BootstrapKind::Mpi);
            assert_eq!(kind(&[("PMIX_RANK", "0")], has_mpi), BootstrapKind::Mpi);
            assert_eq!(kind(&TCP, has_mpi), BootstrapKind::Tcp);
            assert_eq!(kind(&TCP[..2], has_mpi), BootstrapKind::Tcp);
            assert_eq!(kind(&SKY, has_mpi), BootstrapKind::Tcp);
            let spawned = [&[("GINLAB_RANK", "1")][..], &OMPI, &TCP, &SKY].concat();
            assert_eq!(kind(&spawned, has_mpi), BootstrapKind::Local);
            let torchrun_in_srun = [&[("TORCHELASTIC_RUN_ID", "x")][..], &SRUN, &TCP].concat();
            assert_eq!(kind(&torchrun_in_srun, has_mpi), BootstrapKind::Tcp);
        }
        let both = [&SRUN[..], &TCP].concat();
        assert_eq!(kind(&both, true), BootstrapKind::Mpi);
        assert_eq!(kind(&both, false), BootstrapKind::Tcp);
    }

    #[test]
    fn one_task_needs_no_mpi() {
        let one = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        assert_eq!(kind(&one, false), BootstrapKind::Local);
        assert_eq!(kind(&one, true), BootstrapKind::Mpi);
        assert!(refuse_alone(&table(&one), BootstrapKind::Local).is_ok());
    }

    #[test]
    fn incomplete_launcher_variables_are_rejected() {
        for (set, missing) in [
            ("RANK", "WORLD_SIZE"),
            ("WORLD_SIZE", "RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("SLURM_STEP_ID", "SLURM_PROCID"),
        ] {
            let error = refuse_half(&table(&[(set, "1")])).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{set} is set but {missing} is not")) && !error.contains('\n'),
                "{error}"
            );
            assert!(refuse_half(&table(&[(set, "1"), ("GINLAB_RANK", "0")])).is_ok(), "of a rank that ginlab started");
        }
        assert!(refuse_half(&table(&TCP)).is_ok());
        assert!(refuse_half(&table(&[("MASTER_ADDR", "a"), ("LOCAL_RANK", "0")])).is_ok());
    }

    #[test]
    fn batch_script_is_not_srun_step() {
        let batch = [("SLURM_STEP_ID", "4294967291"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(kind(&batch, true), BootstrapKind::Local);
        assert_eq!(kind(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")], true), BootstrapKind::Local);
    }

    #[test]
    fn skypilot_job_of_one_node_is_local() {
        assert_eq!(kind(&[("SKYPILOT_NODE_RANK", "0"), ("SKYPILOT_NUM_NODES", "1")], false), BootstrapKind::Local);
    }

    #[test]
    fn mpi_size_one_under_launcher_is_rejected() {
        let error = refuse_alone(&table(&OMPI), BootstrapKind::Mpi).unwrap_err().to_string();
        assert!(
            error.starts_with("mpirun started 2 ranks, but MPI reports 1: ginlab was built against another MPI"),
            "{error}"
        );
        let pmix = refuse_alone(&table(&[("PMIX_RANK", "3")]), BootstrapKind::Mpi).unwrap_err().to_string();
        assert!(pmix.starts_with("a PMIx launcher started several ranks"), "{pmix}");
        assert!(refuse_alone(&table(&[]), BootstrapKind::Mpi).is_ok());
        // The size of the step takes precedence over that of the job.
        let step = [&SRUN[..], &[("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert!(refuse_alone(&table(&step), BootstrapKind::Mpi).is_ok());
    }

    #[test]
    fn differences_are_one_line() {
        let print = |provider: &str| vec![("provider".to_owned(), provider.to_owned())];
        assert_eq!(first_difference(&[print("tcp"), print("tcp")]), None);
        let error = first_difference(&[print("tcp"), print("efa"), print("tcp"), print("efa")]).unwrap();
        assert_eq!(error.to_string(), "ranks differ: provider is \"tcp\" on rank 0 but \"efa\" on ranks 1, 3");
        let error = first_difference(&[vec![], print("efa")]).unwrap();
        assert_eq!(error.to_string(), "ranks differ: provider is not given on rank 0 but \"efa\" on rank 1");
    }

    #[test]
    fn kinds_are_read_back() {
        for kind in [BootstrapKind::Local, BootstrapKind::Mpi, BootstrapKind::Tcp] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("ring".parse::<BootstrapKind>().is_err());
    }
}
