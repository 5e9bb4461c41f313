//! `ginlab report`: writes a page about recorded runs.

mod args;
mod expected;
mod headlines;

use crate::error::Failure;
use crate::program::{CommandSpec, catalog, program};
use args::ReportArgs;
use ginlab::report::compare::Comparison;
use ginlab::report::figures::PageChart;
use ginlab::report::page::{Newest, Page};
use ginlab::report::pages::Generated;
use ginlab::report::run::Runs;
use ginlab::report::{OutputTarget, WholeFile, same_file};
use std::path::Path;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "report",
    "Write an HTML page of earlier runs: headers, curves, comparisons, every row",
    ReportArgs,
    run
)];

fn run(args: &ReportArgs) -> Result<(), Failure> {
    let Some(path) = &args.output else { return pages(args) };
    let output = OutputTarget::from(path.as_os_str());
    let mut found = Runs::find(&args.paths)?;
    if args.newest {
        found = found.newest(catalog());
    }
    if let OutputTarget::File(path) = &output
        && found.runs.iter().any(|run| same_file(&run.path, path))
    {
        return Err(Failure::Usage(format!("-o {} is one of the input files", path.display())));
    }
    let against = match &args.against {
        Some(path) => {
            let earlier = Runs::find(std::slice::from_ref(path))?;
            let comparison = Comparison::of(&earlier.runs, &found.runs, catalog(), &[])?;
            Some((comparison, path.display().to_string()))
        }
        None => None,
    };
    let ours = args.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let comparison = against.as_ref().map(|(comparison, path)| (comparison, path.as_str(), ours.as_str()));
    if args.newest && output == OutputTarget::Stdout {
        return Err(Failure::Usage("--newest writes several pages: name a file with -o".into()));
    }
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let newest = args.newest.then_some(Newest { findings: headlines::HEADLINES, stem: &stem });
    let expected = if args.newest { Vec::new() } else { expected::of(&found.runs, args.instance.as_deref()) };
    let page =
        Page { title: &args.title, runs: &found.runs, comparison, expected: &expected, catalog: catalog(), newest };
    let built = page.build();
    for one in &expected {
        eprintln!("# expected: {}", expected::line(one));
    }
    for line in &found.left_out {
        eprintln!("# left out: {line}");
    }
    // Create the page before writing charts, so that no charts are written if it fails.
    let page = WholeFile::create("the page", &output)?;
    if let Some(folder) = &args.svg {
        write_pictures(folder, &built.figures)?;
    }
    for (name, html) in &built.parts {
        let target = OutputTarget::File(path.with_file_name(name));
        WholeFile::create("the page", &target)?.write(html.as_bytes())?;
    }
    page.write(built.html.as_bytes())?;
    eprintln!("# {} files, {} charts", found.runs.len(), built.figures.len());
    Ok(())
}

/// Rewrites or checks the pages of the repository.
fn pages(args: &ReportArgs) -> Result<(), Failure> {
    let root = match &args.paths[..] {
        [] => Path::new("."),
        [root] => root,
        more => return Err(Failure::Usage(format!("--pages takes one directory, not {}", more.len()))),
    };
    let generated = Generated::of(root)?;
    for place in &generated.stale {
        eprintln!("# {}: {place}", if args.check { "not current" } else { "rewritten" });
    }
    if !args.check {
        return Ok(generated.write()?);
    }
    match generated.stale.len() {
        0 => Ok(()),
        count => Err(Failure::Run(format!(
            "{count} of {} markers are not current; ginlab report --pages rewrites them",
            generated.markers
        ))),
    }
}

fn write_pictures(folder: &Path, figures: &[PageChart]) -> Result<(), Failure> {
    let unwritable = |error| Failure::Run(format!("cannot create directory {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    for figure in figures {
        let target = OutputTarget::File(folder.join(format!("{}.svg", figure.name)));
        WholeFile::create("the picture", &target)?.write(figure.svg.as_bytes())?;
    }
    Ok(())
}
