//! Figures that are compared with those expected of the machine.

use crate::chart::label;
use maud::{Markup, html};

/// Share of an expected figure below which a measured one is low.
const LOW: f64 = 0.85;

/// A measured figure and the one expected of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Instance type.
    pub instance: String,
    /// Host that was measured.
    pub host: String,
    /// Name of the figure.
    pub what: String,
    /// Measured value.
    pub value: f64,
    /// Expected value.
    pub expected: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// Reason why the row is not a measurement of hardware. `None` if it is one.
    pub unreal: Option<String>,
    /// File of the row.
    pub file: String,
}

impl Expected {
    /// Returns the share of the expected value in percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        100.0 * self.value / self.expected
    }

    /// Returns whether the measured value is too low.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.value < LOW * self.expected
    }
}

/// Returns the table of measured and expected figures.
pub(super) fn table(all: &[Expected]) -> Markup {
    html! {
        @if !all.is_empty() {
            div.box tabindex="0" role="group" aria-label="expected figures" {
                table {
                    thead { tr {
                        @for title in ["instance", "host", "", "measured", "expected", "of it", "verdict", "file"] {
                            th scope="col" { (title) }
                        }
                    } }
                    tbody { @for one in all {
                        tr.unreal[one.unreal.is_some()] {
                            td { (one.instance) }
                            td { (one.host) }
                            td { (one.what) @if let Some(way) = &one.unreal { " " strong.unreal { (way) } } }
                            td.number { (label::short(one.value)) " " (one.unit) }
                            td.number { (label::short(one.expected)) " " (one.unit) }
                            td.number { (format!("{:.0} %", one.percent())) }
                            @if one.is_low() { td.slower { strong { "low" } } } @else { td.faster { "ok" } }
                            td { (one.file) }
                        }
                    } }
                }
            }
            p.aside { "Low: less than " (format!("{:.0} %", 100.0 * LOW)) " of the expected figure, which "
                code { "ginlab model figures" } " derives from published ones." }
        }
    }
}
