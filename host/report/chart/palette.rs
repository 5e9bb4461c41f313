//! Colours of series, by name. They are the same in all charts of a page.

use kuva::plot::line::LineStyle;
use kuva::plot::scatter::MarkerShape;

use super::Chart;
use super::draw::MARKERS;
use crate::each_once;

/// Colours that colour-blind people can distinguish (after Okabe and Ito, darkened until each has a contrast of 3 to a
/// white background).
const COLORS: [&str; 9] =
    ["#0072B2", "#D55E00", "#008A63", "#A8508A", "#4D4D4D", "#A97700", "#3C94CC", "#7A1F4B", "#5B7F1E"];

/// Names of series, in the order of colours. Nine colours and four dash styles result in 36 different lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Palette(Vec<String>);

impl Palette {
    /// Creates the palette of these charts. Names are numbered in order of their first occurrence.
    pub fn of<'a>(charts: impl IntoIterator<Item = &'a Chart>) -> Self {
        Self(each_once(charts.into_iter().flat_map(|chart| &chart.series).map(|series| series.name.clone())))
    }

    fn number(&self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_default()
    }

    /// Returns the colour of a series.
    pub fn color(&self, name: &str) -> &'static str {
        COLORS[self.number(name) % COLORS.len()]
    }

    /// Returns the dash style of a series' line.
    pub fn style(&self, name: &str) -> LineStyle {
        match self.number(name) / COLORS.len() % 4 {
            0 => LineStyle::Solid,
            1 => LineStyle::Dashed,
            2 => LineStyle::Dotted,
            _ => LineStyle::DashDot,
        }
    }

    /// Returns the shape of a series' markers.
    pub fn marker(&self, name: &str) -> MarkerShape {
        MARKERS[self.number(name) % MARKERS.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_stand_out_from_their_background() {
        let luminance = |color: &str| {
            let part = |from: usize| {
                let value = f64::from(u8::from_str_radix(&color[from..from + 2], 16).unwrap_or(0)) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        };
        for color in COLORS {
            assert!(1.05 / (luminance(color) + 0.05) >= 3.0, "{color}");
        }
    }
}
