//! Options of `ginlab chart`.

use clap::ValueEnum;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab chart run.csv -x size_bytes -y bandwidth_gbytes_s --series case,mode -o bandwidth.svg   draw a line per case and mode
  ginlab chart run.csv -x size_bytes -y time_us_p50 --range time_us_min,time_us_p99 --series mode --where case=put -o time.svg
  ginlab chart grids.csv -x grid,block -y rate_mops --series mode --where case=put --where size_bytes=4096 -o -
  ginlab chart before.csv after.csv -x size_bytes -y rate_mops --series file,mode --linear y -o both.svg
  ginlab chart run.csv -x mode -y time_us_p50 --series rails --where size_bytes=64 --bars -o bars.svg   draw bars";

/// Options of `ginlab chart`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ChartArgs {
    /// CSV files written by ginlab
    #[arg(required = true, value_name = "RUN.csv")]
    pub files: Vec<PathBuf>,
    /// Column of the horizontal axis; two columns, such as grid,block, form categories in the order of the file
    #[arg(short = 'x', long = "x", value_name = "COLUMN[,COLUMN]", value_delimiter = ',', required = true)]
    pub x: Vec<String>,
    /// Column of the vertical axis
    #[arg(short = 'y', long = "y", value_name = "COLUMN")]
    pub y: String,
    /// Columns whose values distinguish the series; `file` is the file's name
    #[arg(short = 's', long, value_name = "LIST", value_delimiter = ',')]
    pub series: Vec<String>,
    /// Select rows with one of these values; can be repeated, and all conditions must hold
    #[arg(long = "where", value_name = "COLUMN=VALUE[,VALUE...]")]
    pub filters: Vec<String>,
    /// Columns with the lower and upper end of each point's range, drawn as whiskers
    #[arg(long, value_name = "LOW,HIGH", value_delimiter = ',')]
    pub range: Vec<String>,
    /// Logarithmic axes [default: axes whose positive values span more than a factor of 50]
    #[arg(long, value_enum, value_name = "AXES", value_delimiter = ',')]
    pub log: Vec<AxisName>,
    /// Linear axes
    #[arg(long, value_enum, value_name = "AXES", value_delimiter = ',')]
    pub linear: Vec<AxisName>,
    /// Draw bars, grouped by the values of x
    #[arg(long)]
    pub bars: bool,
    /// Heading [default: generated from the columns]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// SVG file to write; - for stdout
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: PathBuf,
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AxisName {
    /// Horizontal axis
    X,
    /// Vertical axis
    Y,
}
