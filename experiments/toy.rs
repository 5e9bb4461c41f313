//! `ginlab toy`: measures the cost of reading the clock.

use crate::error::Failure;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program, timed};
use crate::values::{List, counts};
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{About, Column, Header, Headline, Plot, Row};
use ginlab::versions::Versions;
use std::time::Instant;

pub const PROGRAMS: &[CommandSpec] = &[program::<Toy>()];

/// Options of `ginlab toy`.
#[derive(clap::Args, Clone, Debug)]
pub struct ToyArgs {
    /// Clock reads per repeat; a list to sweep
    #[arg(short = 'n', long, default_value = "10,100,1000", value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    calls: List<u32>,
}

/// Column of this experiment, also shown in the table.
const CALLS: Column = Column::chosen("calls", "", "Clock reads per repeat").shown("calls", 7);

/// The experiment keeps no state between parameter combinations.
pub struct Toy;

impl Experiment for Toy {
    type Args = ToyArgs;
    type Config = u32;

    const ABOUT: About = About {
        columns: &[CALLS],
        without: &["size_bytes", "rails", "mode", "grid"],
        headlines: &[Headline::least("one clock read", "time_us_p50", &[])],
        plots: &[Plot::TIME.by("calls", "time of a clock read by their number", &["calls"])],
        ..About::new("toy", "Measure the cost of reading the clock")
    };

    fn plan(args: &mut ToyArgs) -> Result<Plan<u32>, Failure> {
        Ok(Plan::alone(args.calls.to_vec()))
    }

    async fn open(_: &ToyArgs, _: &mut Vec<u32>, _: &mut Bootstrap) -> Result<(Toy, Header), Failure> {
        Ok((Toy, Versions::header()))
    }

    async fn tuple(&mut self, &calls: &u32, _: &mut Bootstrap) -> Result<Rows, Failure> {
        let repeat = |_| {
            let began = Instant::now();
            let last = (0..calls).fold(began, |_, _| Instant::now());
            last.duration_since(began).as_secs_f64() * 1e6 / f64::from(calls)
        };
        let times: Vec<f64> = (0..10).map(repeat).collect();
        let mut row = Row::new("toy", "clock", "cpu", "none");
        row.set(&CALLS, calls);
        timed(&mut row, &times, 0, 1);
        Ok(vec![(row, times)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ginlab::report::page::Page;
    use ginlab::report::run::Run;
    use ginlab::report::{Catalog, Table};

    /// This file and two lines in lib.rs are the whole experiment; docs/add-an-experiment.md shows them.
    #[test]
    fn experiment_fits_in_one_file() {
        let page = include_str!("../docs/add-an-experiment.md");
        let (file, _) = include_str!("toy.rs").split_once("\n#[cfg(test)]").unwrap();
        assert!(page.contains(file), "the page shows this file");

        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("toy.csv");
        let matches = PROGRAMS[0].command().get_matches_from([
            "toy",
            "-n",
            "1,2,4",
            "--no-header",
            "--csv",
            csv.to_str().unwrap(),
        ]);
        (PROGRAMS[0].run)(&matches).unwrap();
        let rows: Vec<Row> = csv::Reader::from_path(&csv).unwrap().deserialize().map(Result::unwrap).collect();
        assert_eq!(rows.iter().map(|row| row.own("calls").list().unwrap()).collect::<Vec<_>>(), [[1], [2], [4]]);

        let mut table = Vec::new();
        Table::new(&mut table, false, &Toy::ABOUT, false).row(&rows[2]).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(
            table.lines().next().unwrap().contains("calls") && table.lines().nth(2).unwrap().contains(" 4 "),
            "{table}"
        );

        let about = [Toy::ABOUT];
        let runs = [Run::read(&csv, "toy.csv").unwrap()];
        let built =
            Page { title: "t", runs: &runs, comparison: None, expected: &[], catalog: Catalog(&about), newest: None }
                .build();
        assert_eq!(built.figures.len(), 1);
        for part in [
            "Measure the cost of reading the clock",
            "one clock read",
            "time of a clock read by their number",
            "<td><code>calls</code></td>",
        ] {
            assert!(built.html.contains(part), "{part}: {}", built.html);
        }
    }

    #[test]
    fn invalid_options_print_one_line() {
        let parsed = PROGRAMS[0].command().try_get_matches_from(["toy", "-n", "0"]).map_err(Failure::from);
        assert_eq!(
            parsed.err().and_then(|failure| failure.text()).unwrap(),
            "--calls: invalid list \"0\": every entry must be at least 1"
        );
    }
}
