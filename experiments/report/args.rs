//! Options of `ginlab report`.

use crate::doctor::instance_type;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab report data/h200x4/2026-11-21 -o report.html          show all runs of a directory
  ginlab report --newest data -o newest.html                   show the newest of all runs
  ginlab report run.csv -o run.html --svg charts --title 'One run'   also write each chart as SVG
  ginlab report after.csv --against before.csv -o comparison.html    compare two runs
  ginlab report --pages                                        rewrite the tables and charts of the repository's pages";

/// Options of `ginlab report`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// CSV files written by ginlab, and directories to search for such files
    #[arg(required_unless_present = "pages", value_name = "DIR|CSV")]
    pub paths: Vec<PathBuf>,
    /// HTML file to write; - for stdout
    #[arg(short = 'o', long, required_unless_present = "pages", value_name = "FILE.html")]
    pub output: Option<PathBuf>,
    /// Directory to which each chart is written too; it is created if needed
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Compare with this earlier run, a file or a directory, and show the ratios
    #[arg(long, value_name = "DIR|CSV")]
    pub against: Option<PathBuf>,
    /// Instance type for the comparison of rails with the expected rates [default: that in the header of each run]
    #[arg(long, value_name = "TYPE", value_parser = instance_type, conflicts_with = "newest")]
    pub instance: Option<String>,
    /// Use only the newest of all files: omit a file if each of its rows was measured again in a newer directory. The
    /// page has the headlines with their references and one chart of each experiment, and links to a page of each
    #[arg(long, conflicts_with = "against")]
    pub newest: bool,
    /// Rewrite the tables, figures and charts of the pages of ginlab's repository from its data (CONTRIBUTING.md
    /// describes the markers); DIR: root of the repository [default: current directory]
    #[arg(long, conflicts_with_all = ["output", "svg", "against", "instance", "newest"])]
    pub pages: bool,
    /// Write nothing, and fail if a page or a chart is not current (with --pages)
    #[arg(long, requires = "pages")]
    pub check: bool,
    /// Heading of the page
    #[arg(long, value_name = "TEXT", default_value = "ginlab report")]
    pub title: String,
}
