//! Search for the header of a CSV file.
//!
//! A run writes the header next to the file, as `<stem>.header.json`. In `data/` the headers of a directory and its
//! subdirectories are in one `headers.json` (written by `scripts/pack-results.py`):
//!
//! ```json
//! { "common": { "commit": "7562a8ccddc2", "provider": "null" },
//!   "files": { "nbi.csv": { "command": "ginlab queue -m nbi", "provider": null },
//!              "life/tcp.csv": { "command": "ginlab proxy -p tcp", "provider": "tcp;ofi_rxm" } } }
//! ```
//!
//! A file's own keys take precedence over the common ones; null removes a key.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::chart::ChartError;

/// Number of parent directories that are searched.
const ABOVE: usize = 3;

#[derive(Deserialize)]
struct Packed {
    common: Map<String, Value>,
    files: Map<String, Value>,
}

/// Returns the header of a CSV file: the one next to it, or its entry in the nearest `headers.json` that names the
/// file. `None` if neither exists.
pub(super) fn of(csv: &Path) -> Result<Option<Value>, ChartError> {
    let beside = read(&csv.with_extension("header.json"))?;
    if beside.is_some() {
        return Ok(beside);
    }
    // A relative path has no parents above the current directory.
    let absolute = csv.canonicalize().unwrap_or_else(|_| csv.to_path_buf());
    for folder in absolute.ancestors().skip(1).take(ABOVE) {
        let path = folder.join("headers.json");
        let Some(Packed { common, files }) = read(&path)? else { continue };
        let name = absolute.strip_prefix(folder).unwrap_or(&absolute).to_string_lossy();
        if let Some(Value::Object(own)) = files.get(&*name) {
            let mut header = common;
            header.extend(own.clone());
            return Ok(Some(header.into()));
        }
    }
    Ok(None)
}

/// Returns the JSON document of a file; `None` if the file does not exist.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ChartError> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| ChartError::Broken { path: path.into(), why: error.to_string() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChartError::Read { path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PACKED: &str = r#"{
        "common": { "commit": "c", "provider": "null" },
        "files": { "a.csv": { "command": "a" }, "deeper/b.csv": { "command": "b", "provider": null } }
    }"#;

    fn header(csv: &Path) -> Option<Value> {
        of(csv).unwrap()
    }

    #[test]
    fn headers_file_covers_directory_and_subdirectories() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deeper")).unwrap();
        std::fs::write(folder.path().join("headers.json"), PACKED).unwrap();
        for name in ["a.csv", "deeper/b.csv", "c.csv"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let header = |name: &str| header(&folder.path().join(name));
        assert_eq!(header("a.csv"), Some(serde_json::json!({"commit": "c", "provider": "null", "command": "a"})));
        assert_eq!(header("deeper/b.csv"), Some(serde_json::json!({"commit": "c", "provider": null, "command": "b"})));
        assert_eq!(header("c.csv"), None, "it is not named there");
        // The header next to a file takes precedence.
        std::fs::write(folder.path().join("a.header.json"), r#"{"command": "own"}"#).unwrap();
        assert_eq!(header("a.csv"), Some(serde_json::json!({"command": "own"})));
    }

    #[test]
    fn broken_header_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("headers.json"), r#"{"files": {}}"#).unwrap();
        let told = of(&folder.path().join("a.csv")).unwrap_err().to_string();
        assert!(told.contains("headers.json") && told.contains("common"), "{told}");
    }
}
