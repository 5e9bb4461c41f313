//! `ginlab nccl`: runs an unmodified program that uses NCCL's GIN over ginlab's rails, on one GPU and without a NIC.

mod launch;
mod library;
mod loaded;
mod records;
mod trace;

use crate::error::Failure;
use crate::program::{CommandSpec, program};
use crate::values::{seconds, usage};
use ginlab::cuda;
use ginlab::fabric::{Fabric, soft};
use ginlab::mps::{self, LocalRun, MpsChoice, MpsStep};
use ginlab::proxy::signal_order::Rule;
use ginlab::rails::strategy::Strategy;
use ginlab::{scratch, signals};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "nccl",
    "Run a program that uses NCCL's GIN over ginlab's rails, on one GPU without a NIC",
    NcclArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab nccl --np 2 -- ./gin                               run two ranks on this GPU, over shared memory
  ginlab nccl --np 8 -p model:p5 --rails 4 -- ./gin         run eight ranks, each with four modelled p5 cards
  ginlab nccl -p worst:seed=7 -- mpirun -np 2 ./a.out       run ranks started by mpirun, over the worst-case network
  ginlab nccl -p tcp -- torchrun --nproc-per-node 2 t.py    run ranks started by torchrun, over libfabric's tcp
  ginlab nccl --np 2 --type queues -- ./gin                 let NCCL's kernels write a NIC's queues (GIN type 5)
  ginlab nccl --np 2 --trace puts.jsonl -- ./gin            record every put, one per line, for `ginlab replay`
  ginlab nccl --np 2 --trace puts.json -- ./gin             record puts as slices for Perfetto (ui.perfetto.dev)
  eval \"$(ginlab nccl --print-env)\"                         set only the variables, for ranks started by another launcher

Requires NCCL 2.30 or newer (pip install nvidia-nccl-cu13). NCCL treats each process as a separate node. See docs/nccl.md.";

/// Environment variable with the path of the plugin, instead of the one next to the executable.
const PLUGIN: &str = "GINLAB_NCCL_PLUGIN";
const PLUGIN_FILE: &str = "libnccl_ginlab.so";
/// Maximum number of puts that each communicator records with `--trace`.
const TRACED: usize = 1 << 20;

/// Options of `ginlab nccl`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NcclArgs {
    /// Rails: shared (shared memory, no model), model:p5, soft-efa:p5, worst:seed=N, tcp, efa
    #[arg(short = 'p', long, value_name = "PROVIDER", default_value = "shared")]
    provider: String,
    /// Path of NCCL's kernels to the rails: proxy (GIN type 2, through NCCL's thread), queues (type 5: kernels write a
    /// NIC's queues themselves)
    #[arg(
        long = "type",
        value_enum,
        default_value_t = Type::Proxy,
        value_name = "TYPE",
        hide_possible_values = true,
        help_heading = "Fabric"
    )]
    kind: Type,
    /// Number of rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    rails: u8,
    /// Distribution of puts over rails: single, split, round-robin, auto
    #[arg(long, default_value = "round-robin", value_name = "STRATEGY")]
    strategy: Strategy,
    /// Rule that orders a put and its signal on rails: count, own, drain, sequence
    #[arg(long, default_value = "count", value_name = "RULE")]
    rule: Rule,
    /// Start the program this many times, as ranks of this machine (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
    /// MASTER_PORT, NCCL_COMM_ID)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    np: Option<u16>,
    /// Number of ranks per node, as seen by NCCL (with --np); ranks of one node do not use the rails
    #[arg(long, default_value_t = 1, value_name = "N", requires = "np", value_parser = clap::value_parser!(u16).range(1..=256))]
    node_size: u16,
    /// Maximum time that a put makes no progress, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    timeout: Duration,
    /// Fault to inject into the plugin of rank 0: lost:N (the N-th put is never sent), error:N (the N-th put fails),
    /// dead:N (the rank does nothing from the N-th put on), slow:US (each put is delayed by this many us)
    #[arg(long, value_name = "FAULT", requires = "np")]
    fault: Option<String>,
    /// Write every put and its arrival to this file: FILE.json for Perfetto, otherwise one JSON object per line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Directory of the NCCL library (libnccl.so.2) that the program must use, even if the program includes one
    /// [default: found by the program]
    #[arg(long, value_name = "DIR")]
    nccl: Option<PathBuf>,
    /// CUDA MPS for ranks that share a GPU: auto (start a private server if none is running), off
    #[arg(long, value_enum, default_value_t = MpsChoice::Auto, value_name = "WHICH", hide_possible_values = true)]
    mps: MpsChoice,
    /// Give each process its own host name, for libraries that use the host name to find ranks of the same machine
    /// (NCCL EP)
    #[arg(long)]
    hostnames: bool,
    /// Print the variables as shell commands, and start nothing
    #[arg(long)]
    print_env: bool,
    /// Program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Types of NCCL's GIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Type {
    #[value(alias = "2")]
    Proxy,
    #[value(alias = "5")]
    Queues,
}

/// Name and value of an environment variable.
type Variable = (String, OsString);

fn run(args: &NcclArgs) -> Result<(), Failure> {
    if args.print_env {
        return print(&variables(args)?);
    }
    if args.program.is_empty() {
        return Err(Failure::Usage(
            "no program given: specify it after --, or use --print-env to print the variables".into(),
        ));
    }
    let mut variables = variables(args)?;
    // The number of ranks of mpirun or torchrun is unknown. Assume more than one; an unnecessary server does no harm.
    let ranks = args.np.map_or(2, usize::from);
    let asked = LocalRun { choice: args.mps, device: cuda::DeviceChoice::Auto, ranks, gpus: None };
    if let MpsStep::Ended(code) = mps::before_ranks(&asked) {
        return if code == 0 { Ok(()) } else { Err(Failure::Elsewhere(code)) };
    }
    check_gpus()?;
    library::check(args.nccl.as_deref(), args.kind == Type::Queues)?;
    let folder = scratch::folder();
    let folder = tempfile::tempdir_in(&folder).map_err(|error| {
        Failure::Run(format!(
            "cannot create a directory for records in {}: {error}; set TMPDIR to a writable directory",
            folder.display()
        ))
    })?;
    variables.push(("GINLAB_NCCL_RECORDS".into(), folder.path().into()));
    if args.trace.is_some() {
        variables.push(("GINLAB_NCCL_TRACE".into(), TRACED.to_string().into()));
    }
    let code = match args.np {
        Some(ranks) => launch::ranks(args, usize::from(ranks), &variables)?,
        None => launch::one(&args.program, &variables)?,
    };
    let found = records::read(folder.path()).map_err(Failure::Run)?;
    let ranks = loaded::read(folder.path()).map_err(Failure::Run)?;
    for line in loaded::lines(&ranks) {
        eprintln!("{line}");
    }
    if found.is_empty() {
        eprintln!("ginlab: NCCL has not used the plugin: {}", loaded::reason(&ranks));
    }
    records::table(&found, &mut std::io::stderr());
    if let Some(file) = &args.trace {
        trace::write(&found, file).map_err(|why| usage("--trace", why))?;
    }
    if code != 0 {
        return Err(Failure::Elsewhere(code));
    }
    match records::conservation(&found) {
        Some(why) => Err(Failure::WrongData(why)),
        None => Ok(()),
    }
}

/// Returns the variables that NCCL and the plugin need. NCCL variables that the user has set are kept.
fn variables(args: &NcclArgs) -> Result<Vec<Variable>, Failure> {
    let fabric: Fabric = args.provider.parse().map_err(|why: String| usage("--provider", why))?;
    if matches!(fabric, Fabric::Null) {
        return Err(usage(
            "--provider",
            "null moves no bytes, so that NCCL's kernels would wait indefinitely; shared moves bytes without modelled \
             time",
        ));
    }
    if let Some(fault) = &args.fault {
        fault_is_known(fault)?;
    }
    let plugin = soft::beside_program(PLUGIN_FILE, PLUGIN)
        .and_then(std::fs::canonicalize)
        .map_err(|error| Failure::Usage(format!("cannot find the plugin: {error}")))?;
    let mut variables: Vec<Variable> = Vec::new();
    let mut set = |name: &str, value: &OsStr| variables.push((name.to_owned(), value.to_owned()));
    set("NCCL_RMA_PLUGIN", plugin.as_os_str());
    match args.kind {
        Type::Proxy => set("NCCL_GIN_TYPE", "2".as_ref()),
        Type::Queues => {
            set("NCCL_GIN_PLUGIN", plugin.as_os_str());
            set("NCCL_GIN_TYPE", "5".as_ref());
            // NCCL's symmetric kernels require strong signals, which a NIC's queues do not support.
            set("NCCL_SYM_GIN_KERNELS_ENABLE", "0".as_ref());
        }
    }
    let unless_set = [
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_IB_DISABLE", "1"),
        ("CUDA_MODULE_LOADING", "EAGER"),
    ];
    for (name, value) in unless_set {
        if std::env::var_os(name).is_none() {
            set(name, value.as_ref());
        }
    }
    set("GINLAB_RAILS", args.provider.as_ref());
    set("GINLAB_RAIL_COUNT", args.rails.to_string().as_ref());
    set("GINLAB_STRATEGY", args.strategy.to_string().as_ref());
    set("GINLAB_RULE", args.rule.to_string().as_ref());
    set("GINLAB_TIMEOUT", args.timeout.as_secs().to_string().as_ref());
    let mut preload: Vec<OsString> = Vec::new();
    if soft::is_asked(&args.provider) {
        for (name, value) in soft::environment(&args.provider).map_err(|error| Failure::Usage(error.to_string()))? {
            if name == "LD_PRELOAD" { preload.push(value) } else { set(&name, &value) }
        }
    } else if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(before);
    }
    if args.hostnames {
        set("GINLAB_NCCL_HOSTNAMES", "1".as_ref());
    }
    let names_nodes = args.np.is_none() || args.hostnames;
    if names_nodes {
        // Makes each process a node, however it is started.
        set("GINLAB_NCCL_NODES", "process".as_ref());
    }
    // A preloaded plugin also reports which NCCL the rank has loaded, even if that NCCL loads no plugin.
    if names_nodes || library::can_be_preloaded(&plugin) {
        preload.insert(0, plugin.clone().into_os_string());
    }
    if let Some(folder) = &args.nccl {
        preload.push(library::preloadable(folder)?.into_os_string());
    }
    if !preload.is_empty() {
        set("LD_PRELOAD", &preload.join(OsStr::new(":")));
    }
    if args.node_size > 1 {
        set("NCCL_MULTI_RANK_GPU_ENABLE", "1".as_ref());
    }
    if let Some(folder) = &args.nccl {
        let before = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty());
        let all: Vec<OsString> = std::iter::once(folder.clone().into_os_string()).chain(before).collect();
        set("LD_LIBRARY_PATH", &all.join(OsStr::new(":")));
    }
    Ok(variables)
}

fn fault_is_known(fault: &str) -> Result<(), Failure> {
    let known = fault.split_once(':').is_some_and(|(kind, number)| {
        ["lost", "error", "dead", "slow"].contains(&kind) && number.parse::<u64>().is_ok_and(|number| number > 0)
    });
    if known {
        Ok(())
    } else {
        Err(usage(
            "--fault",
            format!(
                "invalid fault {fault:?}: expected lost:N, error:N, dead:N or slow:US, with a number of at least 1"
            ),
        ))
    }
}

/// Rejects GPUs that NCCL would reject.
fn check_gpus() -> Result<(), Failure> {
    let gpus = cuda::visible_gpus().map_err(|error| Failure::Run(error.to_string()))?;
    if let Some(gpu) = gpus.iter().find(|gpu| !gpu.gpu_direct_virtual) {
        return Err(Failure::Unfit(format!(
            "GPU {} ({}): its driver does not support GPUDirect RDMA of virtual memory, which NCCL's GIN requires",
            gpu.ordinal, gpu.name
        )));
    }
    if gpus.is_empty() {
        eprintln!("# note: no GPU found; NCCL will not find one either");
    }
    Ok(())
}

/// Prints the variables as shell commands.
fn print(variables: &[Variable]) -> Result<(), Failure> {
    let mut out = signals::stdout();
    for (name, value) in variables {
        let value = value.to_string_lossy().replace('\'', "'\\''");
        writeln!(out, "export {name}='{value}'").map_err(|error| Failure::Run(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_validated() {
        assert!(["lost:1", "error:9", "dead:3"].iter().all(|fault| fault_is_known(fault).is_ok()));
        assert!(["lost", "lost:0", "late:1", "dead:x"].iter().all(|fault| fault_is_known(fault).is_err()));
    }
}
