//! Which rows are looked at.

use super::records::number;
use super::{ChartError, label};
use ginlab_base::size;

/// The values that a column may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub(super) column: String,
    values: Vec<String>,
}

impl Filter {
    /// Parses `COLUMN=VALUE[,VALUE...]`. No value at all means that the field is empty.
    pub fn parse(text: &str) -> Result<Self, ChartError> {
        match text.split_once('=') {
            Some((column, values)) if !column.trim().is_empty() => Ok(Self {
                column: column.trim().into(),
                values: values.split(',').map(|value| value.trim().into()).collect(),
            }),
            _ => Err(ChartError::Refused(format!("a condition is COLUMN=VALUE[,VALUE...], not {text:?}"))),
        }
    }

    /// Rows with exactly one of these in the column; an empty one means nothing.
    pub fn one_of(column: &str, values: &[&str]) -> Self {
        Self { column: column.into(), values: values.iter().map(|value| value.to_string()).collect() }
    }

    pub(super) fn passes(&self, field: &str) -> bool {
        self.values
            .iter()
            .any(|value| value == field || number(value).is_some_and(|value| number(field) == Some(value)))
            || label::is_binary(&self.column)
                && self.values.iter().any(|value| size::parse(value) == size::parse(field))
    }

    /// As it was asked for.
    pub(super) fn text(&self) -> String {
        let values = match &self.values[..] {
            [only] => only.clone(),
            several => several.iter().map(|value| shown(value)).collect::<Vec<_>>().join(","),
        };
        format!("{}={values}", self.column)
    }
}

/// A value in a list of values.
pub(super) fn shown(value: &str) -> String {
    if value.is_empty() { "(empty)".into() } else { value.into() }
}
