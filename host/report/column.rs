//! What a column of a row says, and the values that stand in it.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a column tells of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It was chosen: two rows with other values in it are two different measurements.
    Chosen,
    /// It was chosen, and often follows from other columns, as a window from a size: it parts rows that nothing else does.
    Follows,
    /// It was measured, or follows from what was: it never tells two measurements apart.
    Measured,
}

/// A column that an experiment has beside the common ones, declared beside the experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// Its name in CSV and JSON. It ends with the unit where it has one: `ack_us_p50`, `pair_gbytes_s`.
    pub name: &'static str,
    /// The unit, for people; empty where it has none.
    pub unit: &'static str,
    /// Whether it was chosen or measured.
    pub role: Role,
    /// What it says, in a line for people.
    pub meaning: &'static str,
    /// Its heading and its width in the table, where it is shown there.
    pub shown: Option<(&'static str, usize)>,
}

impl Column {
    const fn of(role: Role, name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self { name, unit, role, meaning, shown: None }
    }

    /// A column that was chosen.
    pub const fn chosen(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(Role::Chosen, name, unit, meaning)
    }

    /// A column that was chosen and often follows from others.
    pub const fn follows(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(Role::Follows, name, unit, meaning)
    }

    /// A column that was measured.
    pub const fn measured(name: &'static str, unit: &'static str, meaning: &'static str) -> Self {
        Self::of(Role::Measured, name, unit, meaning)
    }

    /// The same, shown in the table under this heading in so many characters.
    pub const fn shown(mut self, title: &'static str, width: usize) -> Self {
        self.shown = Some((title, width));
        self
    }
}

/// A value of a column. Numbers carry six significant digits when they are written. A reader that guesses types tries the kinds
/// in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A count, or a size in bytes.
    Count(u64),
    /// A measured number.
    #[serde(serialize_with = "six_digits")]
    Number(f64),
    /// A text.
    Text(String),
    /// Nothing: empty in CSV, null in JSON. Lists, which no file of ours has, are read as nothing.
    #[default]
    #[serde(deserialize_with = "anything")]
    None,
}

impl Value {
    /// The number, of a count or of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The counts of a list, which stands in one field joined by `;`: CSV has no lists. One entry alone looks like a count.
    pub fn list(&self) -> Option<Vec<u64>> {
        match self {
            Self::Count(count) => Some(vec![*count]),
            Self::Text(text) => text.split(';').map(|part| part.parse().ok()).collect(),
            _ => None,
        }
    }

    /// The value as a reader of CSV or JSON gets it.
    pub fn as_written(&self) -> Self {
        match self {
            Self::Number(number) => rounded(*number).map_or(Self::None, Self::Number),
            Self::Text(text) if text.is_empty() => Self::None,
            other => other.clone(),
        }
    }
}

/// Six significant digits: finer than any of the measurements, short enough to be read. `None` for what is no number.
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
