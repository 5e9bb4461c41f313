//! The options of `ginlab report`, as typed.

use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab report data/2026-11-21-h200x4 -o report.html
  ginlab report --newest data -o newest.html
  ginlab report run.csv -o run.html --svg pictures --title 'One run'
  ginlab report after.csv --against before.csv -o comparison.html";

/// Options of `ginlab report`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// CSV files that ginlab wrote, and folders with such files in them or below
    #[arg(required = true, value_name = "DIR|CSV")]
    pub paths: Vec<PathBuf>,
    /// Where the page goes; - is stdout
    #[arg(short = 'o', long, value_name = "FILE.html")]
    pub output: PathBuf,
    /// Also write each picture into this folder, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Compare with this earlier run, a file or a folder, and show the ratios in the page
    #[arg(long, value_name = "DIR|CSV")]
    pub against: Option<PathBuf>,
    /// Of all files only the newest of each: one each of whose rows was measured again in a newer folder is left out. The page
    /// begins with the headlines, beside what they are held against
    #[arg(long, conflicts_with = "against")]
    pub newest: bool,
    /// Heading
    #[arg(long, value_name = "TEXT", default_value = "ginlab report")]
    pub title: String,
}
