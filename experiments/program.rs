//! Registry of subcommands: experiments, and programs that list, draw and compare.

use crate::error::Failure;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ginlab::report::{About, Catalog, Row};
use std::sync::OnceLock;

/// Function that runs an experiment and returns its rows.
pub type InProcess = fn(&ArgMatches) -> Result<Vec<Row>, Failure>;

/// A subcommand.
#[derive(Clone, Copy)]
pub struct CommandSpec {
    pub name: &'static str,
    /// One-line description.
    pub question: &'static str,
    /// Adds the subcommand's options.
    pub augment: fn(Command) -> Command,
    pub run: fn(&ArgMatches) -> Result<(), Failure>,
    /// Runs the experiment with all ranks as threads of this process, without outputs, and returns the rows. `None` if
    /// the subcommand is not an experiment.
    pub in_process: Option<InProcess>,
    /// Declaration of rows, if the subcommand writes any.
    pub about: Option<About>,
}

impl CommandSpec {
    /// Returns the clap command.
    pub fn command(&self) -> Command {
        with_headings((self.augment)(Command::new(self.name)).about(self.question))
    }

    /// Returns the clap command without its options, sufficient for a listing.
    pub fn bare(&self) -> Command {
        Command::new(self.name).about(self.question)
    }
}

/// Headings of options in help, in their order, with the ids of the options listed under each. An option that is not
/// listed here and does not name its own `help_heading` (one of these) is listed under the first.
pub const HEADINGS: &[(&str, &[&str])] = &[
    ("Measurement", &[]),
    (
        "Sizes and repeats",
        &[
            "begin",
            "end",
            "factor",
            "bytes",
            "total",
            "payload",
            "nx",
            "ny",
            "n",
            "iterations",
            "pushes",
            "calls",
            "warmup",
            "repeats",
            "check_rounds",
            "time",
            "seeds",
            "first",
            "hours",
            "volume",
            "memory_limit",
        ],
    ),
    ("Rows", &["x", "y", "names", "series", "filters", "range", "against", "newest", "fail_slower", "ignore"]),
    ("Chart", &["log", "linear", "bars", "stacked", "x_label", "y_label", "width", "height"]),
    ("Machine", &["from", "all", "instance"]),
    (
        "Checks",
        &["require_efa", "cards", "wait", "only", "dev", "strict", "gate", "at_least", "no_smoke", "peers", "rates"],
    ),
    ("Connection", &["listen", "connect", "clients", "visits"]),
    ("Device", &["device", "memory", "ring_memory", "ring_slots", "pin"]),
    (
        "Fabric",
        &[
            "provider",
            "versus",
            "domain",
            "profile",
            "path",
            "rails",
            "strategy",
            "rule",
            "completion",
            "proxy_threads",
            "threads",
            "no_copy",
            "fault",
        ],
    ),
    (
        "Ranks",
        &["np", "nodes", "gpus", "node_size", "bootstrap", "bootstrap_if", "mps", "hostnames", "nccl", "timeout"],
    ),
    ("Output", &["output", "svg", "title", "csv", "json", "nccl_topo", "trace", "per_node", "no_header", "print_env"]),
];

/// Groups the options of a command and of its subcommands by heading.
fn with_headings(command: Command) -> Command {
    let heading = |arg: &Arg| {
        let under = |(heading, ids): &(&str, &[&str])| match arg.get_help_heading() {
            Some(own) => own == *heading,
            None => ids.contains(&arg.get_id().as_str()),
        };
        HEADINGS.iter().position(under).unwrap_or(0)
    };
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    let mut options: Vec<_> = options.map(|arg| (heading(arg), arg.get_id().clone())).collect();
    options.sort_by_key(|(heading, _)| *heading);
    // clap prints headings in the order of the arguments, and `mut_arg` moves an argument to the end.
    let command = options
        .into_iter()
        .fold(command, |command, (heading, id)| command.mut_arg(id, |arg| arg.help_heading(HEADINGS[heading].0)));
    // clap's own option has no heading.
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help).display_order(HELP_ORDER);
    let help = help.help("Print help").help_heading("Output");
    command.mut_subcommands(with_headings).disable_help_flag(true).arg(help)
}

/// Position of `--help` under its heading: after all options of a command.
const HELP_ORDER: usize = 1000;

/// Subcommands listed under one heading of `--help`.
pub type Group<'a> = (&'static str, &'a [&'a [CommandSpec]]);

/// Registered subcommands and declarations of rows.
struct Registry {
    programs: Vec<CommandSpec>,
    groups: Vec<(&'static str, Vec<CommandSpec>)>,
    abouts: Vec<About>,
}

static ALL: OnceLock<Registry> = OnceLock::new();

/// Registers all subcommands in the order of `--help`. Only the first call has an effect. `more` declares kinds of rows
/// that have no subcommand.
pub fn register(groups: &[Group<'_>], more: &[About]) {
    ALL.get_or_init(|| {
        let groups: Vec<_> = groups.iter().map(|(heading, programs)| (*heading, programs.concat())).collect();
        let programs: Vec<CommandSpec> = groups.iter().flat_map(|(_, programs)| programs.iter().copied()).collect();
        let abouts = programs.iter().filter_map(|program| program.about).chain(more.iter().copied()).collect();
        Registry { programs, groups, abouts }
    });
}

/// Returns all subcommands.
pub fn all() -> &'static [CommandSpec] {
    ALL.get().map_or(&[], |registry| &registry.programs)
}

/// Returns the headings of `--help`, each with its subcommands.
pub fn groups() -> &'static [(&'static str, Vec<CommandSpec>)] {
    ALL.get().map_or(&[], |registry| &registry.groups)
}

/// Returns the declarations of all experiments.
pub fn catalog() -> Catalog<'static> {
    ALL.get().map_or(Catalog::default(), |registry| Catalog(&registry.abouts))
}

/// Declares a subcommand that is not an experiment, by its options and the function that runs it.
macro_rules! program {
    ($name:literal, $question:literal, $args:ty, $run:expr) => {
        $crate::program::CommandSpec {
            name: $name,
            question: $question,
            augment: <$args as clap::Args>::augment_args,
            run: |matches| {
                let args = <$args as clap::FromArgMatches>::from_arg_matches(matches)?;
                $run(&args)
            },
            in_process: None,
            about: None,
        }
    };
}
pub(crate) use program;
