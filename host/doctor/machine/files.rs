//! Files and environment variables of a machine.

use super::Machine;
use std::fs;
use std::path::Path;

impl Machine {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a file's text, trimmed. `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns whether a device node can be opened for reading.
    pub(crate) fn opens(&self, path: &str) -> bool {
        fs::File::open(self.root.join(path)).is_ok()
    }

    /// Returns the names in a directory, sorted; empty if there is no such directory.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
        names.sort();
        names
    }

    /// Returns the file name of a symbolic link's target.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let to = fs::read_link(self.root.join(path)).ok()?;
        Some(to.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns an environment variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the value of a line `Name: value` in a file of /proc.
    pub(crate) fn line(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }
}
