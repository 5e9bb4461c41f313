//! Commands shown on pages may only use options that the command has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{ginlab, run};

/// Returns the Markdown files of the repository's root, `docs/`, `docs/tutorial/` and `experiments/`, except notes and
/// the changelog.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.to_path_buf(), root.join("docs"), root.join("docs/tutorial")];
    folders.extend(root.join("experiments").read_dir().unwrap().map(|entry| entry.unwrap().path()));
    let files = folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| folder.read_dir().unwrap());
    files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| !path.ends_with("NOTES.md") && !path.ends_with("CHANGELOG.md"))
        .collect()
}

/// Returns the words of `--help` of a subcommand, without surrounding punctuation.
fn help(words: &str) -> Vec<String> {
    let text = run(ginlab(&format!("{words} --help"))).expect(0).stdout;
    let bare = |word: &str| word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '-').to_owned();
    text.split(|letter: char| letter.is_whitespace() || letter == '=').map(bare).collect()
}

#[test]
fn options_on_pages_exist() {
    // Each subcommand has its own line with an indentation of two; other words of the help have other indentations.
    let all = run(ginlab("--help")).expect(0).stdout;
    let named =
        |line: &str| line.strip_prefix("  ")?.split(' ').next().filter(|word| !word.is_empty()).map(str::to_owned);
    let subcommands: Vec<String> = all.lines().filter_map(named).collect();
    let mut helps: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in text.lines() {
            // `soak` and others take another command after `--`.
            for command in line.split("ginlab ").skip(1).flat_map(|command| command.split(" -- ")) {
                // Excludes the rest of a pipe, other programs of mpirun, and text after the code.
                let own = command.split(" : ").next().unwrap();
                let own = own.split(['`', '|', ';', '>', '&']).next().unwrap();
                let mut words = own.split_whitespace().peekable();
                let Some(subcommand) = words.next().filter(|word| subcommands.iter().any(|known| known == word)) else {
                    continue;
                };
                // Only `model` has subcommands.
                let nested = words.next_if(|word| subcommand == "model" && !word.starts_with('-')).unwrap_or_default();
                let name = format!("{subcommand} {nested}").trim_end().to_owned();
                let known = helps.entry(name.clone()).or_insert_with(|| help(&name));
                for word in words.filter(|word| word.starts_with('-') && word.len() > 1) {
                    let option = word.split('=').next().unwrap().trim_end_matches([',', '.', ')', '"', '\'', '\\']);
                    let is_option =
                        option.trim_start_matches('-').starts_with(|letter: char| letter.is_ascii_alphabetic());
                    seen += usize::from(is_option);
                    if is_option && !known.iter().any(|known| known == option) {
                        wrong.push(format!("{}: ginlab {name} has no {option}", page.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} options were found in the pages");
}

/// Values are checked before `--help` is reached, so nothing runs.
#[test]
fn commands_of_other_repositories_parse() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/from-libefaxx.md");
    let text = std::fs::read_to_string(page).unwrap();
    let commands: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter_map(|code| code.strip_prefix("ginlab "))
        .collect();
    assert!(commands.len() > 30, "only {} commands were found", commands.len());
    for command in commands {
        let output = run(ginlab(&format!("{command} --help")));
        assert_eq!(output.code, 0, "ginlab {command}: {}", output.stderr);
    }
}
