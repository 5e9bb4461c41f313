//! Conditions that select rows.

use super::records::number;
use super::{ChartError, label};
use ginlab_base::size;

/// A condition: the values that a column may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub(super) column: String,
    values: Vec<String>,
}

impl Filter {
    /// Parses `COLUMN=VALUE[,VALUE...]`. An empty value selects rows with an empty field.
    pub fn parse(text: &str) -> Result<Self, ChartError> {
        match text.split_once('=') {
            Some((column, values)) if !column.trim().is_empty() => Ok(Self {
                column: column.trim().into(),
                values: values.split(',').map(|value| value.trim().into()).collect(),
            }),
            _ => Err(ChartError::Refused(format!("invalid condition {text:?}: expected COLUMN=VALUE[,VALUE...]"))),
        }
    }

    /// Selects rows with exactly one of these values in the column. An empty value selects an empty field.
    pub fn one_of(column: &str, values: &[&str]) -> Self {
        Self { column: column.into(), values: values.iter().map(|value| value.to_string()).collect() }
    }

    pub(crate) fn passes(&self, field: &str) -> bool {
        self.values
            .iter()
            .any(|value| value == field || number(value).is_some_and(|value| number(field) == Some(value)))
            || label::is_binary(&self.column)
                && self.values.iter().any(|value| size::parse(value) == size::parse(field))
    }

    /// Returns the condition in the syntax of [`parse`](Filter::parse).
    pub(super) fn text(&self) -> String {
        let values = match &self.values[..] {
            [only] => only.clone(),
            several => several.iter().map(|value| shown(value)).collect::<Vec<_>>().join(","),
        };
        format!("{}={values}", self.column)
    }
}

/// Formats a value in a list of values.
pub(super) fn shown(value: &str) -> String {
    if value.is_empty() { "(empty)".into() } else { value.into() }
}
