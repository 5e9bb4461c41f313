//! `ginlab chart`: draws a chart of recorded rows.

mod args;

use crate::error::Failure;
use crate::program::{CommandSpec, program};
use args::AxisName;
use args::ChartArgs;
use ginlab::report::chart::{Filter, Palette, Query, Records};
use ginlab::report::{OutputTarget, WholeFile, same_file};

pub const PROGRAMS: &[CommandSpec] =
    &[program!("chart", "Draw a chart as SVG from CSV files of earlier runs", ChartArgs, run)];

fn run(args: &ChartArgs) -> Result<(), Failure> {
    let output = OutputTarget::from(args.output.as_os_str());
    if let OutputTarget::File(path) = &output
        && args.files.iter().any(|file| same_file(file, path))
    {
        return Err(Failure::Usage(format!("-o {} is one of the input files", path.display())));
    }
    let query = query(args)?;
    let picture = query.chart(&Records::read(&args.files)?)?;
    let svg = picture.chart.svg(&Palette::of([&picture.chart]));
    for note in &picture.notes {
        eprintln!("# {note}");
    }
    WholeFile::create("the chart", &output)?.write(svg.as_bytes())?;
    Ok(())
}

fn query(args: &ChartArgs) -> Result<Query, Failure> {
    let filters = args.filters.iter().map(|text| Filter::parse(text)).collect::<Result<_, _>>()?;
    let range = match &args.range[..] {
        [] => None,
        [low, high] => Some([low.clone(), high.clone()]),
        other => return Err(Failure::Usage(format!("--range requires two columns, LOW,HIGH; {} given", other.len()))),
    };
    let log = |axis: AxisName| match (args.log.contains(&axis), args.linear.contains(&axis)) {
        (true, true) => Err(Failure::Usage(format!("--log and --linear both contain {axis:?}").to_lowercase())),
        (false, false) => Ok(None),
        (log, _) => Ok(Some(log)),
    };
    Ok(Query {
        x: args.x.clone(),
        y: args.y.clone(),
        series: args.series.clone(),
        filters,
        range,
        x_log: log(AxisName::X)?,
        y_log: log(AxisName::Y)?,
        bars: args.bars,
        title: args.title.clone(),
        ..Query::default()
    })
}
