//! `ginlab doctor`: checks for obstacles to a run. Prints a line per check, with the command that fixes a problem. It
//! should be run first, on every node of a cluster, and with `--peers` over all ranks.

mod meet;
mod peers;
mod rates;
mod reach;
mod smoke;
mod table;

use crate::error::Failure;
use crate::job::JobArgs;
use crate::listing::{ListingArgs, recorded};
use crate::program::{CommandSpec, program};
use ginlab::doctor::gate;
use ginlab::doctor::instances::Instance;
use ginlab::doctor::{self, CHECKS, CheckState, Finding, Machine, Requirements};
use ginlab::measure::size;
use ginlab::versions::Versions;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use table::{InstanceName, More};

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "doctor",
    "Check for obstacles to a run and print remedies: limits, EFA, GPUs, NUMA, network",
    DoctorArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab doctor                                check this machine, one line per check
  ginlab doctor --require-efa --cards 32       check a node of an EFA cluster before running on it
  srun --mpi=pmix ginlab doctor --peers --rails 4     write from every rank to every other one on each rail; compare versions and clocks
  ginlab doctor --gate --json -                figures and limits for a scheduler: exit code 3 takes the node out
  srun --mpi=pmix --ntasks-per-node=1 ginlab doctor --peers --rates     rates of all pairs of nodes on all rails
  ginlab doctor --only memlock,efa-driver --json -    run two checks, print JSON
  ginlab doctor --from tests/fixtures/p5 --instance p5.48xlarge     check saved files of another machine

Exit codes: 0 no check failed (with --strict: or warned), 3 a check failed, 2 usage.";

/// Options of `ginlab doctor`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Check a recorded machine: a directory with files of /proc, /sys, /dev and /etc, or with fi_info.yaml, lspci.txt
    /// and ls_sys_bus_pci_devices.txt
    #[arg(long, value_name = "DIR", conflicts_with_all = ["peers", "wait"])]
    from: Option<PathBuf>,
    /// Require EFA: checks fail if part of it is missing
    #[arg(long)]
    require_efa: bool,
    /// Number of EFA devices to require [default: that of the instance type, if known]
    #[arg(long, value_name = "N")]
    cards: Option<usize>,
    /// Instance type, if the machine does not report it
    #[arg(long, value_name = "TYPE", value_parser = instance_type)]
    instance: Option<String>,
    /// Accept that NICs do not access GPU memory and payloads are staged through the host, as on instances without
    /// GPUDirect
    #[arg(long)]
    staged_is_fine: bool,
    /// Maximum wait for EFA devices that appear late, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
    wait: u64,
    /// Run only these checks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = check_name)]
    only: Vec<String>,
    /// Include checks of the tools needed to edit kernels
    #[arg(long)]
    dev: bool,
    /// Exit with 3 for warnings too
    #[arg(long)]
    strict: bool,
    /// Decide whether this machine may take jobs: figures of GPUs, NVLinks, NICs and counters with their limits; a
    /// figure that cannot be read fails
    #[arg(long, conflicts_with_all = ["peers", "only", "no_smoke"])]
    gate: bool,
    /// Minimum ratio of the rate of each NIC to the median of all NICs (--gate, --rates)
    #[arg(long, value_name = "PERCENT", default_value = "85%", value_parser = share)]
    at_least: f64,
    /// Skip trials: open no rails and register no memory
    #[arg(long)]
    no_smoke: bool,
    /// Connect to the other ranks, compare versions and clocks, and write to each of them on each rail
    #[arg(long)]
    peers: bool,
    /// Measure the rates between all pairs of nodes on each rail, and name slow NICs and slow pairs; start one rank per
    /// node
    #[arg(long, requires = "peers", conflicts_with = "no_smoke")]
    rates: bool,
    /// Bytes per rail and pair for --rates
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = bytes, requires = "rates")]
    bytes: u64,
    /// Number of rails for --peers [default: 1; with --rates, all NICs of the node]
    #[arg(long, value_name = "N", requires = "peers")]
    rails: Option<usize>,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    output: ListingArgs,
}

/// Parses a size that is not 0.
fn bytes(text: &str) -> Result<u64, String> {
    match size::parse(text).map_err(|error| error.to_string())? {
        0 => Err("expected a size above 0, such as 64M".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a percentage as a share.
fn share(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let share = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0).map(|percent| percent / 100.0);
    share.ok_or_else(|| format!("invalid share {text:?}: expected a percentage above 0 and up to 100, such as 85%"))
}

/// Parses an instance type, with or without HyperPod's prefix.
pub fn instance_type(text: &str) -> Result<String, String> {
    if let Some(instance) = Instance::named(text) {
        return Ok(instance.name.to_owned());
    }
    let names: Vec<&str> = Instance::all().map(|instance| instance.name).collect();
    Err(format!("unknown instance type {text:?}: expected one of {}; for another: --cards N", names.join(", ")))
}

/// Parses the name of a check.
fn check_name(text: &str) -> Result<String, String> {
    let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("unknown check {text:?}: expected one of {}", names.join(", ")))
    }
}

fn run(args: &DoctorArgs) -> Result<(), Failure> {
    args.output.check()?;
    let findings = if args.peers {
        peers::run(args)?
    } else {
        let (header, mut looked) = match &args.from {
            Some(folder) => {
                let machine = Machine::recorded(folder, wanted(args))
                    .map_err(|error| Failure::Usage(format!("--from {error}")))?;
                (recorded(folder), MachineChecks::at(args, &machine)?)
            }
            None => {
                let mut header = Versions::header();
                let looked = examine(args)?;
                header.note(&looked.took);
                (header, looked)
            }
        };
        table::write(args, &header, &looked.findings, &looked.more)?;
        Some(std::mem::take(&mut looked.findings))
    };
    if ginlab::signals::interrupted() {
        return Err(Failure::Interrupted);
    }
    findings.map_or(Ok(()), |findings| verdict(&findings, args.strict))
}

fn wanted(args: &DoctorArgs) -> Requirements {
    Requirements {
        efa: args.require_efa || args.gate || args.job.provider.as_deref() == Some("efa"),
        other_provider: args.job.provider.as_deref().is_some_and(|provider| !provider.starts_with("efa")),
        instance: args.instance.clone(),
        cards: args.cards,
        emulated: args.job.device == ginlab::cuda::DeviceChoice::Emulated,
        staged: args.staged_is_fine,
        developer: args.dev,
        interfaces: args.job.meet.bootstrap_if.clone(),
    }
}

/// Results of the checks of one machine.
#[derive(Default)]
struct MachineChecks {
    findings: Vec<Finding>,
    /// Duration of the checks, in one line.
    took: String,
    /// The line `fit` for a machine that can only use the emulated device (unless `--only` is given), the instance, and
    /// the figures of `--gate`.
    more: More,
}

impl MachineChecks {
    fn at(args: &DoctorArgs, machine: &Machine) -> Result<MachineChecks, Failure> {
        let fit = if args.only.is_empty() { doctor::only_emulated(machine) } else { None };
        let mut findings = doctor::examine(machine, &args.only);
        let named = InstanceName { kind: machine.instance(), id: machine.instance_id() };
        let instance = (named.kind.is_some() || named.id.is_some()).then_some(named);
        let mut figures = None;
        if args.gate {
            if machine.kind().is_none() {
                let name = machine.instance().unwrap_or_else(|| "unknown".to_owned());
                return Err(Failure::Usage(format!(
                    "--gate: nothing is known about the instance type {name}: name it by --instance, or run without \
                     --gate and with --cards N"
                )));
            }
            let all = gate::figures(machine, args.at_least);
            findings.push(gate::finding(&machine.host, &all));
            figures = Some(all);
        }
        let more = More { fit, instance, figures, rates: None };
        Ok(MachineChecks { findings, took: machine.took.text(), more })
    }
}

/// Checks this machine, and runs trials.
fn examine(args: &DoctorArgs) -> Result<MachineChecks, Failure> {
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    let mut machine = Machine::here(wanted(args));
    // On some instances, EFA devices appear only after the system has started.
    while Instant::now() < deadline && !machine.has_its_cards() && !ginlab::signals::interrupted() {
        std::thread::sleep(Duration::from_millis(500));
        machine = Machine::here(wanted(args));
    }
    let tries = ["smoke", "rma", "gpu-register", "gdrcopy"].iter().any(|name| wants(args, name));
    if tries && !args.no_smoke {
        machine.read_counters();
        smoke::try_out(args, &mut machine);
    } else {
        machine.asked.trials = Some(Vec::new());
    }
    if wants(args, "nvlink") {
        machine.look_again();
    }
    MachineChecks::at(args, &machine)
}

fn wants(args: &DoctorArgs, check: &str) -> bool {
    args.only.is_empty() || args.only.iter().any(|name| name == check)
}

/// Returns the failure for the worst finding, which determines the exit code.
fn verdict(findings: &[Finding], strict: bool) -> Result<(), Failure> {
    let stops = |finding: &&Finding| finding.state == CheckState::Fail || (strict && finding.state == CheckState::Warn);
    let names: Vec<String> =
        findings.iter().filter(stops).map(|finding| format!("{} on {}", finding.check, finding.host)).collect();
    match names.len() {
        0 => Ok(()),
        1 => Err(Failure::Unfit(format!("1 check failed: {}", names[0]))),
        count => Err(Failure::Unfit(format!("{count} checks failed: {}", names.join(", ")))),
    }
}
