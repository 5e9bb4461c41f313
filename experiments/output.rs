//! Output of experiments that print rows: the options, and the outputs themselves.

use crate::error::Failure;
use clap::ValueEnum;
use ginlab::environment::{self, NicCounters};
use ginlab::report::{About, Header, Key, OutputTarget, Report, ReportOptions, Row, RunOutcome, WholeFile};
use ginlab::signals;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Outputs of rows.
#[derive(clap::Args, Clone, Debug)]
pub struct OutputArgs {
    /// Write rows as CSV; - for stdout. The header is written next to the file
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    /// Write header, rows and raw samples as one JSON document; - for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Do not print the header to stderr
    #[arg(long)]
    no_header: bool,
}

/// Condition for coloured tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Set once, from the command line.
static COLOR: OnceLock<Color> = OnceLock::new();

impl Color {
    /// Sets the choice for all tables of this process.
    pub fn choose(self) {
        // Only the first call has an effect; there is one command line.
        let _ = COLOR.set(self);
    }
}

/// Returns whether tables on stdout are coloured.
pub fn color() -> bool {
    match COLOR.get() {
        Some(Color::Always) => true,
        Some(Color::Never) => false,
        Some(Color::Auto) | None => {
            std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

impl OutputArgs {
    /// Returns whether rows or a document are written to stdout instead of the table.
    pub fn takes_stdout(&self) -> bool {
        [&self.csv, &self.json].into_iter().any(|target| target.as_deref() == Some("-"))
    }

    /// Prints a table of results to stdout, or to stderr if rows or a document are written to stdout.
    ///
    /// # Errors
    /// Returns the system's error, or [`Failure::StdoutClosed`] if the reader has closed stdout.
    pub fn print_table(&self, table: &str) -> Result<(), Failure> {
        if self.takes_stdout() {
            eprint!("{table}");
            return Ok(());
        }
        Ok(WholeFile::create("table", &OutputTarget::Stdout)?.write(table.as_bytes())?)
    }

    fn options(&self) -> ReportOptions {
        ReportOptions {
            csv: self.csv.as_deref().map(Into::into),
            json: self.json.as_deref().map(Into::into),
            color: color(),
            quiet: self.no_header,
        }
    }
}

/// Outputs of a run, and its progress bar.
pub struct Output {
    report: Report,
    bar: ProgressBar,
    header: Header,
    /// NIC counters before the run. `None` if the run uses no NICs.
    counters: Option<NicCounters>,
    /// Whether to omit the header from stderr.
    quiet: bool,
}

impl Output {
    /// Opens the requested outputs and prints the header. `steps` is the number of calls of [`step`](Output::step).
    pub fn open(args: &OutputArgs, header: &Header, about: &About, steps: u64) -> Result<Output, Failure> {
        let options = args.options();
        let mut header = header.clone();
        // Queries the clocks only for a GPU, because the query may have to wake up the driver.
        if header.is_on_gpu() {
            header.set(Key::GpuClocks, environment::gpu_clocks());
        }
        let report = Report::open(&options, &header, about)?;
        let rails = header.get(Key::Rails).is_some();
        let counters = rails.then(|| NicCounters::read(Path::new("/")));
        Ok(Output { report, bar: progress_bar(steps), header, counters, quiet: options.quiet })
    }

    /// Records changes of GPU clocks and NIC counters during the run in the files' header, and prints them to stderr.
    fn look_around(&mut self) {
        // stderr reports only counters that indicate problems; the files record every counter that changed.
        let mut talk = Header::default();
        if self.header.is_on_gpu() {
            let clocks = environment::gpu_clocks();
            talk.set(Key::GpuClocksAfter, clocks.clone());
            self.header.set(Key::GpuClocksAfter, clocks);
        }
        if let Some(before) = &self.counters {
            let changes = before.changes(&NicCounters::read(Path::new("/")));
            let trouble = environment::trouble(&changes);
            if !trouble.is_empty() {
                let note = format!("NIC counters that increased during the run: {}", trouble.join(", "));
                talk.note(note.as_str());
                self.header.note(note);
            }
            self.header.set(Key::NicCounters, changes);
        }
        if !self.quiet {
            // Ignore the error: stderr may be closed.
            let _ = talk.write_talk(&mut std::io::stderr().lock());
        }
        self.report.amend(&self.header);
    }

    /// Writes rows as they are measured.
    pub fn rows(&mut self, rows: &[(Row, Vec<f64>)]) -> Result<(), Failure> {
        let report = &mut self.report;
        self.bar.suspend(|| rows.iter().try_for_each(|(row, samples)| report.row(row, samples)))?;
        if signals::stdout_closed() { Err(Failure::StdoutClosed) } else { Ok(()) }
    }

    /// Advances the progress bar by one measurement.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Closes every output, marked complete if `result` is `Ok` and else interrupted. Returns the first failure.
    pub fn close<T>(mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.bar.finish_and_clear();
        self.look_around();
        let finished = self.report.finish(if result.is_ok() { RunOutcome::Complete } else { RunOutcome::Interrupted });
        let value = result?;
        finished?;
        Ok(value)
    }
}

/// Creates the progress bar. Indicatif hides it if stderr is not a terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} measurements, {elapsed} elapsed, {eta} remaining")
    {
        bar.set_style(style);
    }
    // The ticker starts a thread, and the process panics if that fails. A hidden bar does not need it.
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}
