//! NCCL libraries that the ranks loaded, as reported by the preloaded plugin.

use super::library::{OLDEST, text};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// An NCCL library of a process.
#[derive(Clone, Debug, Deserialize)]
struct Library {
    path: String,
    version: i32,
}

/// Report of one process.
#[derive(Clone, Debug, Deserialize)]
pub struct Loaded {
    rank: String,
    libraries: Vec<Library>,
    /// Path of the library that has opened the plugin.
    opener: Option<String>,
}

/// Reads the reports in a directory, ordered by rank.
pub fn read(folder: &Path) -> Result<Vec<Loaded>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found: Vec<Loaded> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "loaded") {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(failed)?;
        // A rank that was killed may have written only a part of its report.
        found.extend(serde_json::from_slice::<Loaded>(&bytes));
    }
    found.sort_by_key(|loaded| (loaded.rank.parse::<u64>().unwrap_or(u64::MAX), loaded.rank.clone()));
    Ok(found)
}

/// Returns the text for a list of ranks: "rank 0", "ranks 0, 1".
fn names(ranks: &[&str]) -> String {
    match ranks {
        [only] if only.parse::<u64>().is_err() => (*only).to_owned(),
        [only] => format!("rank {only}"),
        _ => format!("ranks {}", ranks.join(", ")),
    }
}

/// Returns one line per library, with the ranks that loaded it.
pub fn lines(ranks: &[Loaded]) -> Vec<String> {
    let mut all: BTreeMap<(i32, &str, bool), Vec<&str>> = BTreeMap::new();
    for loaded in ranks {
        for library in &loaded.libraries {
            let opened = loaded.opener.as_deref() == Some(library.path.as_str());
            let of = all.entry((library.version, &library.path, opened)).or_default();
            if !of.contains(&loaded.rank.as_str()) {
                of.push(&loaded.rank);
            }
        }
    }
    all.into_iter()
        .map(|((version, path, opened), ranks)| {
            let what =
                if version == 0 { "an NCCL of unknown version".to_owned() } else { format!("NCCL {}", text(version)) };
            let opened = if opened { ", which has opened the plugin" } else { "" };
            format!("ginlab: {} loaded {what} ({path}){opened}", names(&ranks))
        })
        .collect()
}

/// Returns the probable reason why no rank has used the plugin.
pub fn reason(ranks: &[Loaded]) -> String {
    let versions = || ranks.iter().flat_map(|loaded| &loaded.libraries).map(|library| library.version);
    if ranks.is_empty() {
        "no rank has reported an NCCL (libnccl.so): the program does not use it, links it statically, or exited by a \
         signal or _exit"
            .to_owned()
    } else if versions().all(|version| (1..OLDEST).contains(&version)) {
        format!("it requires NCCL {} or newer; specify the directory of another NCCL with --nccl", text(OLDEST))
    } else {
        "the program does not use GIN, or NCCL has rejected the plugin (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL prints \
         the reason)"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(number: &str, libraries: &[(&str, i32)], opener: Option<&str>) -> Loaded {
        let libraries =
            libraries.iter().map(|(path, version)| Library { path: (*path).to_owned(), version: *version }).collect();
        Loaded { rank: number.to_owned(), libraries, opener: opener.map(str::to_owned) }
    }

    #[test]
    fn ranks_with_one_library_share_a_line() {
        let both = [rank("0", &[("/a", 23203)], Some("/a")), rank("1", &[("/a", 23203), ("/b", 22809)], Some("/a"))];
        assert_eq!(
            lines(&both),
            [
                "ginlab: rank 1 loaded NCCL 2.28.9 (/b)",
                "ginlab: ranks 0, 1 loaded NCCL 2.32.3 (/a), which has opened the plugin"
            ]
        );
    }

    #[test]
    fn reason_names_old_library() {
        assert!(reason(&[]).starts_with("no rank has reported an NCCL"));
        assert!(reason(&[rank("0", &[("/b", 22809)], None)]).contains("requires NCCL 2.30.0 or newer"));
        assert!(reason(&[rank("0", &[("/b", 23203)], None)]).contains("does not use GIN"));
        // The version of a library without `ncclGetVersion` is unknown.
        assert!(reason(&[rank("0", &[("/b", 0)], None)]).contains("does not use GIN"));
    }
}
