//! Header of a run, which describes the software, the hardware and the parameters of the run. Every experiment has the
//! same keys in the same order.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use strum::{EnumCount, EnumIter, IntoEnumIterator, IntoStaticStr};

use super::row::one_line;

/// Keys of a header, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Key {
    /// Version of ginlab.
    Ginlab,
    /// Commit from which ginlab was built.
    Commit,
    /// Command line.
    Command,
    /// Time at which the run started, in UTC.
    Date,
    /// Name of the machine.
    Hostname,
    /// EC2 instance type of the machine.
    Instance,
    /// Model of the CPU.
    Cpu,
    /// Number of cores that this process may use.
    Cores,
    /// Release of the operating system's kernel.
    Kernel,
    /// Compiler with which ginlab was built.
    Rustc,
    /// Compiler of the kernels' PTX, and whether it differs from the project's compiler.
    KernelRustc,
    /// Names of the GPUs.
    Gpu,
    /// Sharing of GPUs by PEs: `none`, or each shared GPU with `one-process`, `mps` or `time-slices` and its PEs.
    Sharing,
    /// Version of the GPU driver.
    Driver,
    /// Version of the loaded libfabric.
    Libfabric,
    /// Version of MPI, if it is used.
    Mpi,
    /// Provider that was opened.
    Provider,
    /// Rails: domains or interfaces.
    Rails,
    /// Completion level with which the rails were opened.
    Completion,
    /// Cores of the proxy threads.
    Affinity,
    /// Method by which the network accesses the payload.
    Memory,
    /// Environment variables that affect results, as `NAME=value`: those of libfabric, CUDA, NCCL, UCX, OpenMP, MPI and
    /// ginlab. Secrets are excluded.
    Environment,
    /// Clocks of the GPUs before the run, and the reasons that limit them: one line per GPU.
    GpuClocks,
    /// Clocks of the GPUs at the end, immediately after the last measurement, in the same form.
    GpuClocksAfter,
    /// Counters of the NICs that changed during the run, by device and counter: `[before, after]`.
    NicCounters,
}

impl Key {
    /// Returns the key in its written form.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Header of one run. Keys that are not set are null in JSON and omitted on stderr.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    entries: BTreeMap<Key, Value>,
    notes: Vec<String>,
}

impl Header {
    /// Sets a key to a text, a number, a list or an `Option` of these.
    pub fn set(&mut self, key: Key, value: impl Into<Value>) -> &mut Self {
        self.entries.insert(key, value.into());
        self
    }

    /// Returns the value of a key, if it is set.
    pub fn get(&self, key: Key) -> Option<&Value> {
        self.entries.get(&key).filter(|value| !value.is_null())
    }

    /// Returns whether the device of the run is a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.get(Key::Gpu).and_then(Value::as_str).is_some_and(|name| name.starts_with("gpu:"))
    }

    /// Adds a note that readers of the figures must know.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Self {
        self.notes.push(text.into());
        self
    }

    /// Adds any number of notes.
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

/// Formats a value for readers: texts without quotes, lists with commas, and an empty text for null and empty objects.
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
