//! Declarations of columns, and the values in them.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Role of a column in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRole {
    /// Chosen: two rows with different values are different measurements.
    Chosen,
    /// Chosen, and usually determined by other columns, as a window is by a size. The column distinguishes rows only if
    /// no other column does.
    Follows,
    /// Measured, or derived from measurements: it never distinguishes two measurements.
    Measured,
}

/// A column of an experiment in addition to the common ones, declared next to the experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// Name in CSV and JSON. It ends with the unit, if there is one: `ack_us_p50`, `pair_gbytes_s`.
    pub name: &'static str,
    /// Unit in readable form; empty if there is none.
    pub unit: &'static str,
    /// Whether the column was chosen or measured.
    pub role: ColumnRole,
    /// One-line description for people.
    pub meaning: &'static str,
    /// Heading and width in the table; `None` if the table does not show the column.
    pub shown: Option<(&'static str, usize)>,
}

impl Column {
    const fn of(role: ColumnRole, name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self { name, unit, role, meaning, shown: None }
    }

    /// Creates a chosen column.
    pub const fn chosen(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(ColumnRole::Chosen, name, unit, meaning)
    }

    /// Creates a chosen column that usually follows from others.
    pub const fn follows(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(ColumnRole::Follows, name, unit, meaning)
    }

    /// Creates a measured column.
    pub const fn measured(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(ColumnRole::Measured, name, unit, meaning)
    }

    /// Returns the column with a heading and a width in characters, so that the table shows it.
    pub const fn shown(mut self, title: &'static str, width: usize) -> Self {
        self.shown = Some((title, width));
        self
    }
}

/// Value of a column. Numbers are written with six significant digits. A reader that guesses types tries the kinds in
/// this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A boolean.
    Flag(bool),
    /// A count, or a size in bytes.
    Count(u64),
    /// A measured number.
    #[serde(serialize_with = "six_digits")]
    Number(f64),
    /// A text.
    Text(String),
    /// No value: empty in CSV, null in JSON. Lists, which ginlab does not write, are read as no value.
    #[default]
    #[serde(deserialize_with = "anything")]
    None,
}

impl Value {
    /// Returns the value of a count or of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text, if the value is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the counts of a list. A list is written as one field joined by `;`, since CSV has no lists. A list of a
    /// single entry looks like a count.
    pub fn list(&self) -> Option<Vec<u64>> {
        match self {
            Self::Count(count) => Some(vec![*count]),
            Self::Text(text) => text.split(';').map(|part| part.parse().ok()).collect(),
            _ => None,
        }
    }

    /// Returns the value as a reader of CSV or JSON receives it.
    pub fn as_written(&self) -> Self {
        match self {
            Self::Number(number) => rounded(*number).map_or(Self::None, Self::Number),
            Self::Text(text) if text.is_empty() => Self::None,
            other => other.clone(),
        }
    }
}

/// Rounds to six significant digits, which is finer than any of the measurements and short enough to read. `None` if
/// `value` is not finite.
pub(super) fn rounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| format!("{value:.5e}").parse().unwrap_or(value))
}

fn six_digits<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    rounded(*number).serialize(serializer)
}

fn anything<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(deserializer).map(drop)
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

macro_rules! from {
    ($($from:ty => |$value:ident| $to:expr,)*) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $to
            }
        })*
    };
}

from! {
    bool => |value| Self::Flag(value),
    u32 => |value| Self::Count(value.into()),
    u64 => |value| Self::Count(value),
    usize => |value| Self::Count(value as u64),
    f64 => |value| Self::Number(value),
    &str => |value| Self::Text(value.into()),
    String => |value| Self::Text(value),
    Vec<u64> => |value| match value[..] {
        [only] => Self::Count(only),
        _ => Self::Text(value.iter().map(u64::to_string).collect::<Vec<_>>().join(";")),
    },
}
