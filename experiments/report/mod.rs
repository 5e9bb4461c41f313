//! `ginlab report`: a page of what earlier runs measured.

mod args;
mod headlines;

use crate::error::Failure;
use crate::program::{Program, catalog, program};
use args::Args;
use ginlab::report::compare::Comparison;
use ginlab::report::figures::Figure;
use ginlab::report::page::Page;
use ginlab::report::run::Runs;
use ginlab::report::{Target, WholeFile, same_file};
use std::path::Path;

pub const PROGRAMS: &[Program] =
    &[program!("report", "Write one HTML page of earlier runs: headers, curves, comparisons, every row", Args, run)];

/// Writes the page.
fn run(args: &Args) -> Result<(), Failure> {
    let output = Target::from(args.output.as_os_str());
    let mut found = Runs::find(&args.paths)?;
    if args.newest {
        found = found.newest(catalog());
    }
    if let Target::File(path) = &output
        && found.runs.iter().any(|run| same_file(&run.path, path))
    {
        return Err(Failure::Usage(format!("-o {} is one of the files to read", path.display())));
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
    let newest = args.newest.then_some(headlines::HEADLINES);
    let built = Page { title: &args.title, runs: &found.runs, comparison, catalog: catalog(), newest }.build();
    for line in &found.left_out {
        eprintln!("# left out: {line}");
    }
    // Opened before the pictures are written: a page that cannot be leaves no pictures either.
    let page = WholeFile::create("the page", &output)?;
    if let Some(folder) = &args.svg {
        write_pictures(folder, &built.figures)?;
    }
    page.write(built.html.as_bytes())?;
    eprintln!("# {} files, {} pictures", found.runs.len(), built.figures.len());
    Ok(())
}

fn write_pictures(folder: &Path, figures: &[Figure]) -> Result<(), Failure> {
    let unwritable = |error| Failure::Run(format!("cannot make the folder {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    for figure in figures {
        let target = Target::File(folder.join(format!("{}.svg", figure.name)));
        WholeFile::create("the picture", &target)?.write(figure.svg.as_bytes())?;
    }
    Ok(())
}
