//! The options of `ginlab chart`, as typed.

use clap::ValueEnum;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab chart run.csv -x size_bytes -y bandwidth_gbytes_s --series case,mode -o bandwidth.svg
  ginlab chart run.csv -x size_bytes -y time_us_p50 --range time_us_min,time_us_p99 --series mode --where case=put -o time.svg
  ginlab chart grids.csv -x grid,block -y rate_mops --series mode --where case=put --where size_bytes=4096 -o -
  ginlab chart one.csv two.csv --names 'before,after' -x size_bytes -y rate_mops --series file,mode --linear y -o both.svg
  ginlab chart run.csv -x mode -y time_us_p50 --series rails --where size_bytes=64 --bars -o bars.svg";

/// Options of `ginlab chart`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// CSV files that ginlab wrote
    #[arg(required = true, value_name = "RUN.csv")]
    pub files: Vec<PathBuf>,
    /// Column of the horizontal axis; two, as grid,block, make categories in the order of the file
    #[arg(short = 'x', long = "x", value_name = "COLUMN[,COLUMN]", value_delimiter = ',', required = true)]
    pub x: Vec<String>,
    /// Column of the vertical axis
    #[arg(short = 'y', long = "y", value_name = "COLUMN")]
    pub y: String,
    /// What the files are called in the picture, in their order [default: their names in words]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub names: Vec<String>,
    /// Columns whose values make a series each; `file` is the file's name
    #[arg(short = 's', long, value_name = "LIST", value_delimiter = ',')]
    pub series: Vec<String>,
    /// Only rows with one of these values; may be given several times, and all must hold
    #[arg(long = "where", value_name = "COLUMN=VALUE[,VALUE...]")]
    pub filters: Vec<String>,
    /// Columns from where to where each point spreads, drawn as whiskers
    #[arg(long, value_name = "LOW,HIGH", value_delimiter = ',')]
    pub range: Vec<String>,
    /// Logarithmic axes [default: where positive values span more than a factor 50]
    #[arg(long, value_enum, value_name = "AXES", value_delimiter = ',')]
    pub log: Vec<AxisName>,
    /// Linear axes
    #[arg(long, value_enum, value_name = "AXES", value_delimiter = ',')]
    pub linear: Vec<AxisName>,
    /// Bars, grouped by the values of x
    #[arg(long)]
    pub bars: bool,
    /// Bars on top of each other, one pile for each value of x
    #[arg(long, conflicts_with_all = ["bars", "range"])]
    pub stacked: bool,
    /// Heading [default: what is shown]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Name of the horizontal axis [default: by the column]
    #[arg(long, value_name = "TEXT")]
    pub x_label: Option<String>,
    /// Name of the vertical axis [default: by the column]
    #[arg(long, value_name = "TEXT")]
    pub y_label: Option<String>,
    /// Width in pixels
    #[arg(long, default_value_t = 860, value_name = "N")]
    pub width: u32,
    /// Height in pixels
    #[arg(long, default_value_t = 480, value_name = "N")]
    pub height: u32,
    /// Where the SVG goes; - is stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: PathBuf,
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AxisName {
    /// The horizontal one.
    X,
    /// The vertical one.
    Y,
}
