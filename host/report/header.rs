//! What was run, on what: one set of keys in one order for every experiment.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use strum::{EnumCount, EnumIter, IntoEnumIterator, IntoStaticStr};

use super::row::one_line;

/// The keys of a header, in the order they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Key {
    /// Version of ginlab.
    Ginlab,
    /// The commit it was built from.
    Commit,
    /// The command line.
    Command,
    /// When the run began, UTC.
    Date,
    /// The machine's name.
    Hostname,
    /// Model of the CPU.
    Cpu,
    /// Cores this process may use.
    Cores,
    /// Release of the operating system's kernel.
    Kernel,
    /// The compiler ginlab was built with.
    Rustc,
    /// The compiler of the kernels' PTX, and whether it is another than the project's.
    KernelRustc,
    /// The GPU.
    Gpu,
    /// How PEs shared GPUs: `none`, or each shared GPU with `one-process`, `mps` or `time-slices` and its PEs.
    Sharing,
    /// The GPU's driver.
    Driver,
    /// Version of libfabric that was loaded.
    Libfabric,
    /// Version of MPI, where it is used.
    Mpi,
    /// The provider that was really opened.
    Provider,
    /// The rails: domains or interfaces.
    Rails,
    /// The completion level the rails were opened with.
    Completion,
    /// Cores of the proxy threads.
    Affinity,
    /// How the network reaches the payload.
    Memory,
    /// Environment variables that decide results, as `NAME=value`: those of libfabric, CUDA, NCCL, UCX, OpenMP, MPI and ginlab;
    /// never secrets.
    Environment,
    /// Clocks of the GPUs before the run, and what holds them back: a line per GPU.
    GpuClocks,
    /// The same at the end, right behind the last measurement.
    GpuClocksAfter,
    /// Counters of the network cards that changed during the run: by device and counter, `[before, after]`.
    NicCounters,
}

impl Key {
    /// The key as it is written.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The header of one run. Keys that were not set are null in JSON and left out on stderr.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    entries: BTreeMap<Key, Value>,
    notes: Vec<String>,
}

impl Header {
    /// Sets a key: a text, a number, a list or an `Option` of them.
    pub fn set(&mut self, key: Key, value: impl Into<Value>) -> &mut Self {
        self.entries.insert(key, value.into());
        self
    }

    /// The value of a key, when it was set.
    pub fn get(&self, key: Key) -> Option<&Value> {
        self.entries.get(&key).filter(|value| !value.is_null())
    }

    /// Adds a remark that a reader of the figures must know.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Self {
        self.notes.push(text.into());
        self
    }

    /// Adds several of them, or one that there may be.
    pub fn notes(&mut self, texts: impl IntoIterator<Item: Into<String>>) -> &mut Self {
        self.notes.extend(texts.into_iter().map(Into::into));
        self
    }

    /// Writes `# key: value` lines, for stderr.
    pub fn write_talk(&self, out: &mut impl Write) -> io::Result<()> {
        let mut text = String::new();
        for key in Key::iter() {
            if let Some(value) = self.get(key) {
                text += &format!("# {}: {}\n", key.name(), one_line(&plain(value)));
            }
        }
        for note in &self.notes {
            text += &format!("# note: {}\n", one_line(note));
        }
        out.write_all(text.as_bytes())
    }
}

/// A value for people: texts without quotes, lists with commas, nothing for what holds nothing.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Key::COUNT + 1))?;
        for key in Key::iter() {
            map.serialize_entry(key.name(), self.entries.get(&key).unwrap_or(&Value::Null))?;
        }
        map.serialize_entry("notes", &self.notes)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_are_ordered_as_declared() {
        assert!(Key::iter().is_sorted());
    }

    #[test]
    fn talk_is_one_line_per_key_in_order() {
        let mut text = Vec::new();
        super::super::tests::header().write_talk(&mut text).unwrap();
        insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r"
        # ginlab: 0.1.0
        # command: ginlab proxy --np 2
        # cores: 2
        # rails: lo#0, lo#1
        # note: bytes are staged
        # note: two lines
        ");
    }
}
