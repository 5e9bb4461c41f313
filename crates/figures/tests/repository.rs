//! What holds of the results in `data/` and of the links between pages.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files of a folder and of those in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn ends(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

#[test]
fn results_are_small() {
    let files = files(&root().join("data"));
    let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(
        files.len() <= 300 && bytes <= 5_000_000,
        "data/ has {} files of {bytes} bytes, and may have 300 of 5,000,000: take out what no page cites and a later run replaces",
        files.len()
    );
}

#[test]
fn every_table_has_its_command_and_every_run_its_page() {
    for run in std::fs::read_dir(root().join("data")).unwrap().map(|entry| entry.unwrap().path()) {
        if !run.is_dir() {
            continue;
        }
        let shown = run.display();
        assert!(run.join("README.md").is_file(), "{shown} has no README.md: machine, commit, what is notable");
        let headers = std::fs::read(run.join("headers.json"))
            .unwrap_or_else(|_| panic!("{shown} has no headers.json: scripts/pack-results.sh {shown} makes it"));
        let headers: serde_json::Value = serde_json::from_slice(&headers).unwrap();
        let described: BTreeSet<&str> = headers["files"].as_object().unwrap().keys().map(String::as_str).collect();
        let files = files(&run);
        let within = |path: &Path| path.strip_prefix(&run).unwrap().to_str().unwrap().to_owned();
        let tables: BTreeSet<String> = files.iter().filter(|path| ends(path, "csv")).map(|path| within(path)).collect();
        assert_eq!(described, tables.iter().map(String::as_str).collect(), "{shown}: headers, and CSV files");
        for (name, header) in headers["files"].as_object().unwrap() {
            assert!(header["command"].is_string(), "{shown}: {name} has no command");
        }
        let documents = files.iter().filter(|path| ends(path, "json")).map(|path| within(path));
        assert_eq!(documents.collect::<Vec<_>>(), ["headers.json"], "{shown}: samples are packed");
    }
}

#[test]
fn links_of_pages_lead_somewhere() {
    let root = root();
    let pages: Vec<PathBuf> = ["experiments", "docs", "data", "deploy"]
        .iter()
        .map(|folder| root.join(folder))
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| files(&folder))
        .collect();
    let mut wrong = Vec::new();
    for page in pages.iter().filter(|path| ends(path, "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let path = page.parent().unwrap().join(target.split('#').next().unwrap());
            if !path.exists() {
                wrong.push(format!("{}: {target}", page.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
