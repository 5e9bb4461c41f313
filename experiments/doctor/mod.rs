//! `ginlab doctor`: what stands in the way of a run, a line per check with the command that mends it; first on every node of a
//! cluster, and over all ranks with `--peers`.

mod peers;
mod smoke;
mod table;

use crate::error::Failure;
use crate::job::JobArgs;
use crate::listing::{ListingArgs, recorded};
use crate::program::{Program, program};
use ginlab::doctor::{self, CHECKS, Finding, Machine, State, Wanted};
use ginlab::versions::Versions;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const PROGRAMS: &[Program] = &[program!(
    "doctor",
    "Check what stands in the way of a run: limits, EFA, libfabric, GPUs, NUMA, launcher, network; each with what mends it",
    Args,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab doctor                                this machine, a line per check
  ginlab doctor --require-efa --cards 32       a node of a cluster over EFA, before time is spent on it
  srun --mpi=pmix ginlab doctor --peers --rails 4     every rank to every other one on each rail; versions and clocks compared
  ginlab doctor --only memlock,efa-driver --json -
  ginlab doctor --from tests/fixtures/p5 --instance p5.48xlarge     a machine of which somebody has saved files

Exit codes: 0 nothing failed (--strict: and nothing warned), 3 something did, 2 usage.";

/// Options of `ginlab doctor`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Examine a recorded machine: a folder with files of /proc, /sys, /dev and /etc, or with fi_info.yaml, lspci.txt and
    /// ls_sys_bus_pci_devices.txt
    #[arg(long, value_name = "DIR", conflicts_with_all = ["peers", "wait"])]
    from: Option<PathBuf>,
    /// The run goes over EFA: what is missing of it fails
    #[arg(long)]
    require_efa: bool,
    /// EFA cards that must be here [default: the instance's number, where it is known]
    #[arg(long, value_name = "N")]
    cards: Option<usize>,
    /// The instance's type, where the machine does not tell it
    #[arg(long, value_name = "TYPE")]
    instance: Option<String>,
    /// Seconds to wait for cards that come up late
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
    wait: u64,
    /// Only these checks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = check_name)]
    only: Vec<String>,
    /// Also what an edit of a kernel needs
    #[arg(long)]
    dev: bool,
    /// Exit code 3 for warnings too
    #[arg(long)]
    strict: bool,
    /// Try nothing: no rail is opened, no memory registered
    #[arg(long)]
    no_smoke: bool,
    /// Meet the other ranks, compare, and write to each of them on each rail
    #[arg(long)]
    peers: bool,
    /// Rails to reach peers by
    #[arg(long, default_value_t = 1, value_name = "N", requires = "peers")]
    rails: usize,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    output: ListingArgs,
}

/// A name of a check.
fn check_name(text: &str) -> Result<String, String> {
    let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("there is no check {text:?}; there are {}", names.join(", ")))
    }
}

/// Examines.
fn run(args: &Args) -> Result<(), Failure> {
    args.output.check()?;
    let findings = if args.peers {
        peers::run(args)?
    } else {
        let (header, looked) = match &args.from {
            Some(folder) => {
                let machine = Machine::recorded(folder, wanted(args))
                    .map_err(|error| Failure::Usage(format!("--from {error}")))?;
                (recorded(folder), Looked::at(args, &machine))
            }
            None => {
                let mut header = Versions::header();
                let looked = examine(args);
                header.note(&looked.took);
                (header, looked)
            }
        };
        table::write(args, &header, &looked.findings, looked.fit.as_deref())?;
        Some(looked.findings)
    };
    if ginlab::signals::interrupted() {
        return Err(Failure::Interrupted);
    }
    findings.map_or(Ok(()), |findings| verdict(&findings, args.strict))
}

fn wanted(args: &Args) -> Wanted {
    Wanted {
        efa: args.require_efa || args.job.provider.as_deref() == Some("efa"),
        other_provider: args.job.provider.as_deref().is_some_and(|provider| !provider.starts_with("efa")),
        instance: args.instance.clone(),
        cards: args.cards,
        developer: args.dev,
        interfaces: args.job.meet.bootstrap_if.clone(),
    }
}

/// What was found out about one machine.
#[derive(Default)]
struct Looked {
    findings: Vec<Finding>,
    /// What the look took, in a line.
    took: String,
    /// Said at the end of a machine that is fit for the emulated device alone, where all checks were asked for.
    fit: Option<String>,
}

impl Looked {
    fn at(args: &Args, machine: &Machine) -> Looked {
        let fit = if args.only.is_empty() { doctor::only_emulated(machine) } else { None };
        Looked { findings: doctor::examine(machine, &args.only), took: machine.took.text(), fit }
    }
}

/// Looks at this machine, and tries what it can do.
fn examine(args: &Args) -> Looked {
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    let mut machine = Machine::here(wanted(args));
    // Cards of some instances come up after the system.
    while Instant::now() < deadline && !machine.has_its_cards() && !ginlab::signals::interrupted() {
        std::thread::sleep(Duration::from_millis(500));
        machine = Machine::here(wanted(args));
    }
    let tries = ["smoke", "rma", "gpu-register", "gdrcopy"].iter().any(|name| wants(args, name));
    if tries && !args.no_smoke {
        smoke::try_out(args, &mut machine);
    } else {
        machine.asked.trials = Some(Vec::new());
    }
    if wants(args, "nvlink") {
        machine.look_again();
    }
    Looked::at(args, &machine)
}

fn wants(args: &Args, check: &str) -> bool {
    args.only.is_empty() || args.only.iter().any(|name| name == check)
}

/// The exit code: by the worst finding.
fn verdict(findings: &[Finding], strict: bool) -> Result<(), Failure> {
    let stops = |finding: &&Finding| finding.state == State::Fail || (strict && finding.state == State::Warn);
    let names: Vec<String> =
        findings.iter().filter(stops).map(|finding| format!("{} on {}", finding.check, finding.host)).collect();
    match names.len() {
        0 => Ok(()),
        1 => Err(Failure::Unfit(format!("one check stands in the way: {}", names[0]))),
        count => Err(Failure::Unfit(format!("{count} checks stand in the way: {}", names.join(", ")))),
    }
}
