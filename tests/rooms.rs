//! The rooms of the library and of the program: which file imports which.
//!
//! Read from the sources' own `use` lines and paths, each followed to the file that defines the name. A room's face (`mod.rs`),
//! which hands names on, is no file of its own here.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path below its crate: `["fabric", "null"]`.
type Module = Vec<String>;

/// The sources below a folder, by module; tests, which may import whatever they like, are left out.
fn sources(root: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
                let mut module: Module = path
                    .strip_prefix(root)
                    .unwrap()
                    .with_extension("")
                    .iter()
                    .map(|part| part.to_str().unwrap().to_owned())
                    .collect();
                if ["mod", "lib", "main"].contains(&name.as_str()) {
                    module.pop();
                }
                found.insert(module, code(&std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// Without comments, and without the tests at the end.
fn code(source: &str) -> String {
    let lines =
        source.lines().take_while(|line| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test"));
    lines.map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Every path that the code names from `crate`, `super` or `self`, groups in braces laid out: `crate::a::{b, c::D}` is two.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            if !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
                tree(&code[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Reads one path or group from the front of `text`; what is behind it.
fn tree<'a>(text: &'a str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'a str {
    let depth = before.len();
    let mut rest = text.trim_start();
    loop {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end > 0 {
            before.push(rest[..end].to_owned());
        }
        match rest[end..].strip_prefix("::") {
            Some(more) if more.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '{') => rest = more,
            _ => {
                rest = &rest[end..];
                break;
            }
        }
        let Some(mut inside) = rest.strip_prefix('{') else { continue };
        loop {
            inside = tree(inside, before, found).trim_start();
            inside = inside.split_once([',', '}']).map_or("", |(alias, _)| &inside[alias.len()..]);
            match inside.strip_prefix(',').map(str::trim_start) {
                Some(next) if !next.starts_with('}') => inside = next,
                _ => break,
            }
        }
        before.truncate(depth);
        return inside.trim_start_matches(',').trim_start().trim_start_matches('}');
    }
    found.push(before.clone());
    before.truncate(depth);
    rest
}

/// What a file defines at its outermost level.
fn defines(code: &str, name: &str) -> bool {
    code.lines().any(|line| {
        let mut words =
            line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!').filter(|word| !word.is_empty());
        let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type", "union", "macro_rules!"];
        !line.starts_with(' ') && words.any(|word| kinds.contains(&word)) && words.next() == Some(name)
    })
}

/// The module that defines what `path`, seen from `from`, names.
fn resolve(sources: &BTreeMap<Module, String>, from: &Module, path: &[String], depth: usize) -> Option<Module> {
    let mut module = from.clone();
    let mut rest = path;
    match path.first().map(String::as_str) {
        Some("crate") => (module, rest) = (Vec::new(), &path[1..]),
        Some("self") => rest = &path[1..],
        _ => {
            while rest.first().is_some_and(|word| word == "super") {
                module.pop()?;
                rest = &rest[1..];
            }
        }
    }
    while let Some(next) = rest.first() {
        module.push(next.clone());
        if !sources.contains_key(&module) {
            module.pop();
            break;
        }
        rest = &rest[1..];
    }
    let name = rest.first().filter(|name| !defines(&sources[&module], name) && depth < 5);
    // Handed on from a module below: `pub use child::{Name}`.
    let handed = name.and_then(|name| {
        let mut children = sources.keys().filter(|other| other.len() == module.len() + 1 && other.starts_with(&module));
        children.find(|child| defines(&sources[*child], name)).cloned()
    });
    Some(handed.unwrap_or(module))
}

/// Groups of files that import each other in a circle, with more than two of them.
fn circles(root: &str) -> Vec<BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let sources = sources(&folder);
    let is_face = |module: &Module| folder.join(module.join("/")).is_dir();
    let mut reach: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, code) in sources.iter().filter(|(module, _)| !is_face(module)) {
        let targets = paths(code).into_iter().filter_map(|path| resolve(&sources, module, &path, 0));
        reach.insert(module, targets.filter(|target| target != module && !is_face(target)).collect());
    }
    assert!(reach.values().map(BTreeSet::len).sum::<usize>() > reach.len(), "{root}: imports were read");
    // Everything that is reached by however many steps.
    loop {
        let before: usize = reach.values().map(BTreeSet::len).sum();
        for module in reach.keys().copied().collect::<Vec<_>>() {
            let further: Vec<Module> =
                reach[module].iter().filter_map(|next| reach.get(next)).flatten().cloned().collect();
            reach.get_mut(module).unwrap().extend(further);
        }
        if before == reach.values().map(BTreeSet::len).sum() {
            break;
        }
    }
    let together = |one: &Module| -> BTreeSet<String> {
        let back = |other: &&Module| reach[one].contains(*other) && reach[*other].contains(one);
        reach.keys().copied().filter(back).map(|module| module.join("/")).collect()
    };
    let found: BTreeSet<_> = reach.keys().map(|module| together(module)).filter(|circle| circle.len() > 2).collect();
    found.into_iter().collect()
}

#[test]
fn no_circle_of_more_than_two_files() {
    for root in ["host", "experiments"] {
        assert_eq!(circles(root), Vec::<BTreeSet<String>>::new(), "{root}");
    }
}

/// What stands for all experiments together: the list of them, and the whole command line.
const WHOLE: [&str; 2] = ["crate::catalog", "crate::command"];

/// What an experiment needs and the program has belongs to the host, or to a file of its own. Only what is of all
/// experiments is the program's.
#[test]
fn nothing_climbs_to_the_program() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments"));
    let main = Module::new();
    for (module, code) in sources.iter().filter(|(module, _)| !module.is_empty()) {
        let climbs = |path: &Vec<String>| {
            resolve(&sources, module, path, 0).as_ref() == Some(&main)
                && path.len() > 1
                && !WHOLE.contains(&path.join("::").as_str())
        };
        let climbing: Vec<_> = paths(code).into_iter().filter(climbs).map(|path| path.join("::")).collect();
        assert_eq!(climbing, Vec::<String>::new(), "{}", module.join("/"));
    }
}

/// The reader itself: what it finds, and that it can fail.
#[test]
fn paths_and_circles_are_read() {
    let read = |code: &str| paths(code).into_iter().map(|path| path.join("::")).collect::<Vec<_>>();
    assert_eq!(
        read("use crate::a::{b, c::{D, e}, f as g};"),
        ["crate::a::b", "crate::a::c::D", "crate::a::c::e", "crate::a::f"]
    );
    assert_eq!(read("use super::x;\nfn f() { crate::y::z(self::w) }"), ["crate::y::z", "super::x", "self::w"]);
    assert_eq!(read("std::a; my_crate::b"), [""; 0]);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")] {
        std::fs::write(
            folder.path().join(name).with_extension("rs"),
            format!("use crate::{next}::f;\nuse crate::e::f;\npub fn f() {{}}\n"),
        )
        .unwrap();
    }
    std::fs::write(folder.path().join("e.rs"), "pub fn f() {}\n").unwrap();
    assert_eq!(circles(root), [["a", "b", "c"].map(String::from).into()]);
}
