//! Option `--trace` of `ginlab proxy`.

use std::path::PathBuf;
use std::str::FromStr;

/// Path prefix of the trace files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceTo(PathBuf);

impl FromStr for TraceTo {
    type Err = String;

    fn from_str(prefix: &str) -> Result<TraceTo, String> {
        let path = PathBuf::from(prefix);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.file_name().is_none() || parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(format!("invalid path {prefix:?}: expected a file name in an existing directory"));
        }
        Ok(TraceTo(path))
    }
}

impl TraceTo {
    /// Returns the file with this extension.
    pub fn with(&self, extension: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }
}
