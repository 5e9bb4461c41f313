//! The `ginlab` command line.

use crate::output::Color;
use crate::program::{self, CommandSpec};
use clap::{Command, CommandFactory, Parser};
use std::ffi::OsString;
use std::fmt::Write;

/// Laboratory for GPU-initiated networking: kernels in Rust push puts into a ring, and a CPU proxy posts them to NIC
/// rails
#[derive(Parser)]
#[command(name = "ginlab", version = "", disable_version_flag = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 run failed or wrong data, 2 usage, 3 not fit (doctor, write --at-least), 124 timed out, 130 interrupted.\n\
                        GINLAB_LIBFABRIC=PATH loads that libfabric and no other.\n\
                        `ginlab COMMAND --help` lists the options of a command."
)]
pub struct Cli {
    /// Print the versions of ginlab and of the libraries found on this machine
    #[arg(short = 'V', long, exclusive = true)]
    pub version: bool,
    /// Colour tables: auto (on a terminal, unless NO_COLOR is set), always, never
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t = Color::Auto,
        global = true,
        hide_possible_values = true,
        help_heading = "Output",
        display_order = 900
    )]
    pub color: Color,
}

/// Returns the command line with all options of every subcommand.
pub fn command() -> Command {
    root().subcommands(program::all().iter().map(CommandSpec::command))
}

/// Like [`command`], but subcommands that do not occur in `words` have only a name and a description. Every rank parses
/// the command line at its start, and building all options takes most of that time.
pub fn command_for(words: impl Iterator<Item = OsString>) -> Command {
    let words: Vec<OsString> = words.collect();
    let subcommand = |program: &CommandSpec| {
        if words.iter().any(|word| word == program.name) { program.command() } else { program.bare() }
    };
    root().subcommands(program::all().iter().map(subcommand))
}

/// Returns the command line without subcommands. Its help lists them by group, which clap does not support.
fn root() -> Command {
    let command = Cli::command();
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, programs) in program::groups() {
        // Writing to a string does not fail.
        let _ = write!(template, "\n{header}{heading}:{header:#}\n");
        for CommandSpec { name, question, .. } in programs {
            let _ = writeln!(template, "  {literal}{name:<NAME_WIDTH$}{literal:#}  {question}");
        }
    }
    let _ = write!(template, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    command.help_template(template)
}

/// Width of the subcommands' names in the help.
const NAME_WIDTH: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::HEADINGS;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    /// Returns the headings of a help text.
    fn headings(help: &str) -> Vec<&str> {
        help.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.strip_suffix(':')).collect()
    }

    #[test]
    fn help_lists_every_subcommand_once() {
        crate::register();
        let help = command().render_help().to_string();
        for program in program::all() {
            let line = format!("  {:<NAME_WIDTH$}  {}", program.name, program.question);
            assert_eq!(help.lines().filter(|other| *other == line).count(), 1, "{line:?} in {help}");
            assert!(line.len() <= 100, "{line:?} has {} characters", line.len());
            assert!(!line.contains(['{', '}']), "{line:?} is part of a template");
        }
        let groups = program::groups().iter().map(|(heading, _)| *heading);
        assert_eq!(headings(&help), groups.chain(["Options"]).collect::<Vec<_>>(), "{help}");
    }

    #[test]
    fn help_groups_all_options() {
        crate::register();
        let all = program::all().iter().map(CommandSpec::command);
        let nested = all.clone().flat_map(|command| command.get_subcommands().cloned().collect::<Vec<_>>());
        for mut command in all.chain(nested) {
            let help = command.render_help().to_string();
            let known = |heading: &&str| HEADINGS.iter().position(|(known, _)| known == heading);
            let found: Vec<usize> = headings(&help).iter().filter_map(known).collect();
            assert!(found.is_sorted() && !found.is_empty(), "{}: {help}", command.get_name());
            assert!(!headings(&help).contains(&"Options"), "{}: {help}", command.get_name());
            assert!(help.lines().any(|line| line.starts_with("  -h, --help")), "{}: {help}", command.get_name());
        }
    }

    /// `--path` of a `gin` program names every path.
    #[test]
    fn help_of_path_names_every_path() {
        crate::register();
        let help = |command: clap::Command| {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some("path"))?;
            let of_pes = arg.get_default_values().first()?.to_str()?.parse::<ginlab::gin::PePath>().is_ok();
            of_pes.then(|| (command.get_name().to_owned(), arg.get_help().unwrap_or_default().to_string()))
        };
        let all: Vec<(String, String)> = program::all().iter().filter_map(|program| help(program.command())).collect();
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert!(["shmem", "collective", "jacobi", "moe"].iter().all(|name| names.contains(name)), "{names:?}");
        for (name, help) in &all {
            assert!(help.starts_with("Path between PEs: auto, nvlink, rails, direct"), "{name}: {help}");
        }
    }

    /// Returns the Rust files in a directory, except those that contain only tests.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = folder.read_dir().expect("a directory").map(|entry| entry.expect("an entry").path());
        let kept = entries.filter(|path| !path.ends_with("tests") && !path.ends_with("tests.rs"));
        let nested = kept.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
        nested.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
    }

    #[test]
    fn library_names_no_options() {
        crate::register();
        let mut options = BTreeSet::new();
        for program in program::all() {
            let command = program.command();
            options.extend(command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))));
        }
        let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host");
        // Remedies of `doctor` are commands, and `found.rs` shortens the commands in the headers of results.
        let exempt = |path: &Path| path.starts_with(host.join("doctor")) || path.ends_with("report/page/found.rs");
        let mut wrong = Vec::new();
        for path in sources(&host).iter().filter(|path| !exempt(path)) {
            let text = std::fs::read_to_string(path).expect("a source file");
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (number, line) in product.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
                let mut words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
                if let Some(option) = words.find(|word| options.contains(*word)) {
                    wrong.push(format!("{}:{}: {option}", path.display(), number + 1));
                }
            }
        }
        assert!(wrong.is_empty(), "an error names the thing, and the experiment adds the option: {wrong:?}");
    }
}
