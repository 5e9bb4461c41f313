//! What experiments that print rows share: the options of their outputs, and the outputs themselves.

use crate::error::Failure;
use clap::ValueEnum;
use ginlab::environment::{self, Counters};
use ginlab::report::{About, Ending, Header, Key, Options, Report, Row};
use ginlab::signals;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;
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
    /// Leave the header off stderr
    #[arg(long)]
    no_header: bool,
}

/// Colour of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal without NO_COLOR.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Set once, by the command line.
static COLOR: OnceLock<Color> = OnceLock::new();

impl Color {
    /// Decides for all tables of this process.
    pub fn choose(self) {
        // The first choice stands; there is one command line.
        let _ = COLOR.set(self);
    }
}

/// Whether tables on stdout have colours.
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
    /// Whether rows or a document go to stdout in place of the table.
    pub fn takes_stdout(&self) -> bool {
        [&self.csv, &self.json].into_iter().any(|target| target.as_deref() == Some("-"))
    }

    fn options(&self) -> Options {
        Options {
            csv: self.csv.as_deref().map(Into::into),
            json: self.json.as_deref().map(Into::into),
            color: color(),
            quiet: self.no_header,
        }
    }
}

/// The outputs of a run, and the progress bar above them.
pub struct Output {
    report: Report,
    bar: ProgressBar,
    header: Header,
    /// The cards' counters before the run; none where it uses no cards.
    counters: Option<Counters>,
    /// Leave the header off stderr.
    quiet: bool,
}

impl Output {
    /// Opens what was asked for and shows the header. `steps`: how often [`step`](Output::step) will be called.
    pub fn open(args: &OutputArgs, header: &Header, about: &About, steps: u64) -> Result<Output, Failure> {
        let options = args.options();
        let mut header = header.clone();
        if on_gpu(&header) {
            header.set(Key::GpuClocks, environment::gpu_clocks());
        }
        let report = Report::open(&options, &header, about)?;
        let rails = header.get(Key::Rails).is_some();
        let counters = rails.then(|| Counters::read(Path::new("/")));
        Ok(Output { report, bar: progress_bar(steps), header, counters, quiet: options.quiet })
    }

    /// What the run has done to its surroundings, into the header of files and to stderr.
    fn look_around(&mut self) {
        // For people only what they should know; the files hold every counter that changed.
        let mut talk = Header::default();
        if on_gpu(&self.header) {
            let clocks = environment::gpu_clocks();
            talk.set(Key::GpuClocksAfter, clocks.clone());
            self.header.set(Key::GpuClocksAfter, clocks);
        }
        if let Some(before) = &self.counters {
            let changes = before.changes(&Counters::read(Path::new("/")));
            let trouble = environment::trouble(&changes);
            if !trouble.is_empty() {
                let note = format!("the network cards counted during the run: {}", trouble.join(", "));
                talk.note(note.as_str());
                self.header.note(note);
            }
            self.header.set(Key::NicCounters, changes);
        }
        if !self.quiet {
            // Nothing can be done about a closed stderr, and nothing needs to be.
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

    /// One measurement is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Closes every output, as complete or interrupted by what the run came to. The first failure is the one that is returned.
    pub fn close<T>(mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.bar.finish_and_clear();
        self.look_around();
        let finished = self.report.finish(if result.is_ok() { Ending::Complete } else { Ending::Interrupted });
        let value = result?;
        finished?;
        Ok(value)
    }
}

/// Whether the run uses a GPU; asking the driver about clocks takes a while where it has to be woken up.
fn on_gpu(header: &Header) -> bool {
    header.get(Key::Gpu).and_then(|name| name.as_str()).is_some_and(|name| name.starts_with("gpu:"))
}

/// Hidden by indicatif where stderr is no terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} measurements, {elapsed} so far, {eta} to go")
    {
        bar.set_style(style);
    }
    // It has a thread of its own, which nobody needs where nothing is drawn, and ends the process where it cannot be started.
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}
