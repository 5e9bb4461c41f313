//! `figures`: where the numbers of a page come from.
//!
//! Each page of `experiments/` has a `figures.toml` beside it, which names for each number of the page the file in `data/`, the
//! rows and the column (`page.rs` has the format). This program prints them, checks that the page says what the data says, or
//! writes the data's numbers into the page.

mod data;
mod loose;
mod page;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use page::Page;

/// Prints for each number of a page its file, its rows, its column, and the command that measured it.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:
  scripts/figures.sh experiments/ipc            each figure of a page with its file, filter and command
  scripts/figures.sh --check                    all pages; exit code 1 if one says what the data does not
  scripts/figures.sh --update experiments/ipc   new numbers into the page, after figures.toml names another folder")]
struct Args {
    /// Folders with a README.md and a figures.toml; all of experiments/ and data/ without
    pages: Vec<PathBuf>,
    /// Print only what is wrong
    #[arg(long)]
    check: bool,
    /// Write the numbers of the data into the page and its figures.toml, at the precision that is printed
    #[arg(long, conflicts_with = "check")]
    update: bool,
}

fn main() -> ExitCode {
    run(Args::parse()).unwrap_or_else(|why| {
        eprintln!("figures: {why}");
        ExitCode::from(2)
    })
}

/// The exit code is 1 where a page says what the data does not.
fn run(args: Args) -> Result<ExitCode, String> {
    let root = root();
    let pages = if args.pages.is_empty() { all(&root) } else { args.pages };
    let mut wrong = false;
    for folder in pages {
        let mut page = Page::read(&root, &folder)?;
        if args.update {
            page.update()?;
        }
        if !args.check {
            print!("{}", page.listing());
        }
        for problem in page.problems() {
            eprintln!("{}: {problem}", folder.display());
            wrong = true;
        }
    }
    Ok(u8::from(wrong).into())
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every folder that has figures: those of the experiments, and that of the project's README.
fn all(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root.join("experiments"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .chain([root.join("data")])
        .filter(|folder| folder.join("figures.toml").is_file())
        .filter_map(|folder| folder.strip_prefix(root).map(Path::to_path_buf).ok())
        .collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_say_what_the_data_says() {
        let mut problems = Vec::new();
        for folder in all(&root()) {
            match Page::read(&root(), &folder) {
                Ok(page) => {
                    problems.extend(page.problems().into_iter().map(|what| format!("{}: {what}", folder.display())))
                }
                Err(why) => problems.push(why),
            }
        }
        assert!(problems.is_empty(), "scripts/figures.sh shows each figure:\n{}", problems.join("\n"));
    }

    #[test]
    fn a_page_that_names_data_has_figures() {
        let pages = std::fs::read_dir(root().join("experiments")).into_iter().flatten();
        for folder in pages.filter_map(|entry| Some(entry.ok()?.path())) {
            let Ok(text) = std::fs::read_to_string(folder.join("README.md")) else { continue };
            let cites = text.contains("](../../data/");
            assert_eq!(cites, folder.join("figures.toml").is_file(), "{}", folder.display());
        }
    }
}
