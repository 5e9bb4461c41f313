//! Checks ginlab's dependencies against `deny.toml`: licences, banned packages, duplicate versions, sources. `cargo
//! deny check` does the same and more (advisories). This test needs only cargo, no network, and a second.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod skips;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Command;

/// Output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// The dependency graph of this build.
#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

#[derive(Clone, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
    /// Names of the packages that depend on this one.
    #[serde(default)]
    taken_by: Vec<String>,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// The part of deny.toml that is checked here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    /// Packages that may use the banned package nevertheless.
    #[serde(default)]
    wrappers: Vec<String>,
}

fn rules() -> Rules {
    toml::from_str(include_str!("../deny.toml")).unwrap()
}

/// Returns whether a licence expression can be satisfied: `A OR B`, `A AND (B OR C)`, `A WITH B`, and the older `A/B`.
fn can_be_met(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "this is no licence expression: {expression}");
    met
}

fn either(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = either(words, at, allowed);
        assert_eq!(words.get(*at), Some(&")"));
        *at += 1;
        return met;
    }
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
        return words.get(*at - 1).is_some_and(|exception| allowed(&format!("{word} WITH {exception}")));
    }
    allowed(word)
}

/// Returns the violations of the rules by these packages.
fn wrong(packages: &[Package], rules: &Rules) -> Vec<String> {
    let mut wrong = Vec::new();
    let registry = packages.iter().find_map(|package| package.source.as_deref());
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let Package { name, version, .. } = package;
        versions.entry(name).or_default().push(version);
        let exceptions = rules.licenses.exceptions.iter().filter(|exception| exception.name == *name);
        let also: Vec<&String> = exceptions.flat_map(|exception| &exception.allow).collect();
        let allowed =
            |license: &str| rules.licenses.allow.iter().chain(also.iter().copied()).any(|known| known == license);
        match &package.license {
            Some(license) if can_be_met(license, &allowed) => {}
            license => wrong.push(format!("{name} {version}: its licence is {license:?}")),
        }
        for banned in rules.bans.deny.iter().filter(|banned| banned.name == *name) {
            let others = package.taken_by.iter().filter(|by| !banned.wrappers.contains(by));
            let others: Vec<&str> = others.map(String::as_str).collect();
            if banned.wrappers.is_empty() || !others.is_empty() {
                wrong.push(format!("{name} {version} is banned: {}; taken by {}", banned.reason, others.join(", ")));
            }
        }
        if package.source.is_some() && (package.source.as_deref() != registry || !is_registry(package)) {
            wrong.push(format!("{name} {version} comes from {:?}", package.source));
        }
        for dependency in package.dependencies.iter().filter(|one| package.source.is_none() && one.path.is_none()) {
            if dependency.req == "*" {
                wrong.push(format!("{name} takes any version of {}", dependency.name));
            }
        }
    }
    let skipped = |name: &str, version: &str| {
        let named = format!("{name}@{version}");
        rules.bans.skip.iter().any(|skip| skip.name == named)
    };
    for (name, versions) in versions {
        let left: Vec<&str> = versions.into_iter().filter(|version| !skipped(name, version)).collect();
        if left.len() > 1 {
            wrong.push(format!("{name} is there in the versions {}", left.join(" and ")));
        }
    }
    wrong
}

fn is_registry(package: &Package) -> bool {
    package.source.as_deref().is_some_and(|source| source.starts_with("registry+"))
}

/// Returns the packages of a build of everything on this kind of machine. `None`, with the reason printed, if cargo has
/// not fetched all of them.
fn packages() -> Option<Vec<Package>> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let asked = ["metadata", "--format-version", "1", "--offline", "--locked", "--all-features", "--filter-platform"];
    let done = Command::new(env!("CARGO")).args(asked).arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("--offline was specified") {
        skips::skip("not all packages have been fetched (cargo fetch)");
        return None;
    }
    assert!(done.status.success(), "{said}");
    let Metadata { mut packages, resolve } = serde_json::from_slice(&done.stdout).unwrap();
    let names: BTreeMap<String, String> =
        packages.iter().map(|package| (package.id.clone(), package.name.clone())).collect();
    for package in &mut packages {
        let takes = |node: &&Node| node.dependencies.contains(&package.id);
        package.taken_by = resolve.nodes.iter().filter(takes).map(|node| names[&node.id].clone()).collect();
    }
    Some(packages)
}

#[test]
fn dependencies_are_allowed() {
    let Some(packages) = packages() else { return };
    assert!(packages.len() > 100, "cargo names only {} packages", packages.len());
    let rules = rules();
    let wrong = wrong(&packages, &rules);
    assert!(wrong.is_empty(), "deny.toml does not allow:\n{}", wrong.join("\n"));
    // Entries that are no longer needed must be removed from the list.
    for skip in &rules.bans.skip {
        let (name, version) = skip.name.split_once('@').unwrap();
        let there = packages.iter().any(|package| package.name == name && package.version == version);
        assert!(there, "deny.toml lets {} pass, which is not there any more", skip.name);
    }
}

#[test]
fn every_locked_package_has_checksum() {
    let lock = include_str!("../Cargo.lock");
    for package in lock.split("[[package]]").skip(1) {
        let registry = package.contains("\nsource = \"registry+");
        assert_eq!(registry, package.contains("\nsource = "), "{package}");
        assert_eq!(registry, package.contains("\nchecksum = \""), "{package}");
    }
}

/// Tests the check itself: one made-up violation of each rule.
#[test]
fn disallowed_dependencies_are_detected() {
    let rules = rules();
    let good = Package {
        id: String::new(),
        name: "good".into(),
        version: "1.0.0".into(),
        license: Some("MIT/Apache-2.0".into()),
        source: Some("registry+index".into()),
        dependencies: Vec::new(),
        taken_by: Vec::new(),
    };
    let found = |change: fn(&mut Package)| {
        let mut bad = good.clone();
        change(&mut bad);
        wrong(&[good.clone(), bad], &rules).join("; ")
    };
    let part = |text: String, part: &str| assert!(text.contains(part), "{part:?} is not in {text:?}");
    part(found(|bad| bad.version = "2.0.0".into()), "good is there in the versions 1.0.0 and 2.0.0");
    let named = |bad: &mut Package| bad.name = "bad".into();
    assert_eq!(wrong(std::slice::from_ref(&good), &rules), Vec::<String>::new());
    let license = |license: &str| {
        let mut bad = good.clone();
        named(&mut bad);
        bad.license = Some(license.to_owned());
        wrong(&[good.clone(), bad], &rules)
    };
    for allowed in ["MIT", "GPL-3.0 OR MIT", "(MIT OR GPL-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception"] {
        assert_eq!(license(allowed), Vec::<String>::new(), "{allowed}");
    }
    for refused in ["GPL-3.0-only", "MIT AND GPL-2.0", "MPL-2.0", "(MIT AND GPL-2.0) OR MPL-2.0", "GPL-2.0 WITH x"] {
        assert_eq!(license(refused).len(), 1, "{refused}");
    }
    part(found(|bad| (bad.name, bad.license) = ("bad".into(), None)), "bad 1.0.0: its licence is None");
    part(found(|bad| bad.name = "ring".into()), "ring 1.0.0 is banned");
    let by = |by: &[&str]| {
        let taken_by = by.iter().map(|by| (*by).to_owned()).collect();
        wrong(&[Package { name: "cc".into(), taken_by, ..good.clone() }], &rules).join("; ")
    };
    assert_eq!(by(&["mpi-sys"]), "");
    part(by(&["mpi-sys", "bad"]), "cc 1.0.0 is banned: ginlab builds without a C compiler; taken by bad");
    let git = |bad: &mut Package| (bad.name, bad.source) = ("bad".into(), Some("git+https://host/x".into()));
    part(found(git), "bad 1.0.0 comes from");
    let other = |bad: &mut Package| (bad.name, bad.source) = ("bad".into(), Some("registry+other".into()));
    part(found(other), "bad 1.0.0 comes from");
    let any = |bad: &mut Package| {
        (bad.name, bad.source) = ("bad".into(), None);
        bad.dependencies = vec![Dependency { name: "x".into(), req: "*".into(), path: None }];
    };
    part(found(any), "bad takes any version of x");
}
