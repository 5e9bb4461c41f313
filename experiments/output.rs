//! What experiments that print rows share: the options of their outputs, and the outputs themselves.

use crate::error::Failure;
use clap::ValueEnum;
use ginlab::cuda::Choice;
use ginlab::report::{Ending, Header, Options, Report, Row};
use ginlab::signals;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Where rows go.
#[derive(clap::Args, Clone, Debug)]
pub struct OutputArgs {
    /// Write rows as CSV; - is stdout, and the header goes beside a file
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    /// Write header, rows and raw samples as one JSON document; - is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Colour of the table
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    color: Color,
    /// Leave the header off stderr
    #[arg(long)]
    no_header: bool,
}

/// Colour of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal without NO_COLOR.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl OutputArgs {
    /// Whether rows or a document go to stdout in place of the table.
    pub fn takes_stdout(&self) -> bool {
        [&self.csv, &self.json].into_iter().any(|target| target.as_deref() == Some("-"))
    }

    /// For the report.
    pub fn options(&self) -> Options {
        Options {
            csv: self.csv.as_deref().map(Into::into),
            json: self.json.as_deref().map(Into::into),
            color: match self.color {
                Color::Auto => ginlab::report::Color::Auto,
                Color::Always => ginlab::report::Color::Always,
                Color::Never => ginlab::report::Color::Never,
            },
            quiet: self.no_header,
        }
    }
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The GPU.
    Gpu,
    /// CPU threads.
    Emulated,
    /// The GPU where there is one.
    Auto,
}

impl From<DeviceKind> for Choice {
    fn from(kind: DeviceKind) -> Choice {
        match kind {
            DeviceKind::Gpu => Choice::Gpu,
            DeviceKind::Emulated => Choice::Emulated,
            DeviceKind::Auto => Choice::Auto,
        }
    }
}

/// The outputs of a run, and the progress bar above them.
pub struct Output {
    report: Report,
    bar: ProgressBar,
}

impl Output {
    /// Opens what was asked for and shows the header. `steps`: how often [`step`](Output::step) will be called.
    pub fn open(options: &Options, header: &Header, steps: u64) -> Result<Output, Failure> {
        Ok(Output { report: Report::open(options, header)?, bar: progress_bar(steps) })
    }

    /// Writes rows as they are measured.
    pub fn rows(&mut self, rows: &[(Row, Vec<f64>)]) -> Result<(), Failure> {
        let report = &mut self.report;
        self.bar.suspend(|| rows.iter().try_for_each(|(row, samples)| report.row(row, samples)))?;
        if signals::stdout_closed() { Err(Failure::StdoutClosed) } else { Ok(()) }
    }

    /// One measurement is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Closes every output, as complete or interrupted by what the run came to. The first failure is the one that is returned.
    pub fn close<T>(self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.bar.finish_and_clear();
        let finished = self.report.finish(if result.is_ok() { Ending::Complete } else { Ending::Interrupted });
        let value = result?;
        finished?;
        Ok(value)
    }
}

/// Hidden by indicatif where stderr is no terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} measurements, {elapsed} so far, {eta} to go")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
