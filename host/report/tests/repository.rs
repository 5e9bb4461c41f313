//! Checks of the results in `data/`, of the links between pages, and of the script that packs results.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the files in a directory and its subdirectories.
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
fn tables_have_commands_and_runs_have_pages() {
    let folders = |of: &Path| -> Vec<PathBuf> {
        let all = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.is_dir()).collect()
    };
    for class in folders(&root().join("data")) {
        let files = files(&class);
        // The headers of a class are in one file, those of its latest run may be in the directory of the run.
        let mut described = BTreeSet::new();
        for path in files.iter().filter(|path| ends(path, "json")) {
            let shown = path.display();
            assert!(path.ends_with("headers.json"), "{shown}: samples are packed by scripts/pack-results.py");
            let headers: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            for (name, header) in headers["files"].as_object().unwrap() {
                assert!(header["command"].is_string(), "{shown}: {name} has no command");
                described.insert(path.with_file_name(name));
            }
        }
        let tables = files.iter().filter(|path| ends(path, "csv")).cloned();
        assert_eq!(described, tables.collect(), "{}: headers, and CSV files", class.display());
        for folder in folders(&class).iter().chain([&class]) {
            let page = folder.join("README.md");
            assert!(page.is_file(), "no {}: machine, commit, what is notable", page.display());
        }
    }
}

/// Returns the README, and the Markdown files of the directories that have pages.
fn pages() -> Vec<PathBuf> {
    let rooms = ["experiments", "docs", "data", "deploy"].map(|room| root().join(room));
    let all = rooms.iter().filter(|room| room.is_dir()).flat_map(|room| files(room));
    all.filter(|path| ends(path, "md")).chain([root().join("README.md")]).collect()
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            if !page.parent().unwrap().join(target.split('#').next().unwrap()).exists() {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_cited_by_pages_exist() {
    const ROOMS: [&str; 8] = ["host/", "kernels/", "experiments/", "crates/", "scripts/", "tests/", "docs/", "deploy/"];
    let is_path = |code: &&str| {
        ROOMS.iter().any(|room| code.starts_with(room)) && !code.contains([' ', '*', '{', '<', '|', '\n', ':'])
    };
    let mut wrong = Vec::new();
    // NOTES.md files and the pages of runs name files that existed at the time, and pages about additions name files
    // that do not exist yet.
    let runs = root().join("data");
    let of_run = |page: &PathBuf| page.parent().and_then(Path::parent).is_some_and(|folder| folder.starts_with(&runs));
    let of_today = |page: &&PathBuf| {
        !page.ends_with("NOTES.md") && !of_run(page) && !page.display().to_string().contains("docs/add-")
    };
    for page in pages().iter().filter(of_today) {
        let text = std::fs::read_to_string(page).unwrap();
        for path in text.split('`').skip(1).step_by(2).filter(is_path) {
            if !root().join(path).exists() {
                wrong.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs `scripts/pack-results.py`. Returns its exit code and stderr.
fn pack(arguments: &[&Path]) -> (Option<i32>, String) {
    let done = std::process::Command::new(root().join("scripts/pack-results.py")).args(arguments).output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

/// Returns a header as ginlab writes it.
fn header(command: &str, provider: Option<&str>) -> String {
    let header = serde_json::json!({
        "commit": "abc", "command": command, "provider": provider, "rails": ["lo, \"a\"", "lo"], "mpi": null,
        "notes": [], "nic_counters": { "lo": { "rx": [1, 2] } }
    });
    serde_json::to_string_pretty(&header).unwrap()
}

#[test]
fn packed_headers_keep_content_of_each_header() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("deeper")).unwrap();
    for (name, provider) in [("a", Some("tcp")), ("b", Some("tcp")), ("deeper/c", None)] {
        write(&format!("{name}.csv"), "schema\n1\n");
        write(&format!("{name}.header.json"), &header(&format!("ginlab {name}"), provider));
    }
    // A listing has its header in its document.
    write("d.csv", "schema\n1\n");
    let document = serde_json::json!({ "schema": 1, "header": { "command": "ginlab d", "commit": "abc" }, "rows": [] });
    write("d.json", &serde_json::to_string_pretty(&document).unwrap());
    write("log.txt", "== a: ginlab a\nrows\n   ok, 1 s\n");
    write("README.md", "one run");

    assert_eq!(pack(&[folder.path()]), (Some(0), String::new()));
    let text = std::fs::read_to_string(folder.path().join("headers.json")).unwrap();
    let packed: serde_json::Value = serde_json::from_str(&text).unwrap();
    let said = |file: &str, key: &str| match packed["files"][file].get(key) {
        Some(own) => own.clone(),
        None => packed["common"][key].clone(),
    };
    for (file, command) in
        [("a.csv", "ginlab a"), ("b.csv", "ginlab b"), ("deeper/c.csv", "ginlab deeper/c"), ("d.csv", "ginlab d")]
    {
        assert_eq!(said(file, "command"), command);
        assert_eq!(said(file, "commit"), "abc");
    }
    assert_eq!([said("a.csv", "provider"), said("b.csv", "provider")], ["tcp", "tcp"]);
    assert_eq!(
        [said("deeper/c.csv", "provider"), said("d.csv", "rails")],
        [serde_json::Value::Null, serde_json::Value::Null]
    );
    assert_eq!(said("deeper/c.csv", "rails"), serde_json::json!(["lo, \"a\"", "lo"]));
    assert_eq!(said("a.csv", "nic_counters"), serde_json::json!({ "lo": { "rx": [1, 2] } }));
    assert_eq!(std::fs::read_to_string(folder.path().join("steps.txt")).unwrap(), "== a: ginlab a\n   ok, 1 s\n");
    let left: BTreeSet<String> = files(folder.path())
        .iter()
        .map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
        .collect();
    let left: Vec<&str> = left.iter().map(String::as_str).filter(|name| !name.starts_with("samples.tar.")).collect();
    assert_eq!(left, ["README.md", "a.csv", "b.csv", "d.csv", "deeper/c.csv", "headers.json", "steps.txt"]);
}

#[test]
fn directory_is_packed_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("headers.json"), "{}").unwrap();
    let (code, said) = pack(&[folder.path()]);
    assert_eq!(code, Some(2));
    assert!(said.contains("is already packed") && said.lines().count() == 1, "{said}");
    assert_eq!(pack(&[]).0, Some(2));
}
