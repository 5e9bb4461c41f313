//! Where everything stands in the picture.

use super::scale::{Scale, Tick};
use super::{Chart, ChartError, Kind, Mark, label};

/// Sizes of texts.
pub const TITLE: u32 = 16;
/// See `TITLE`.
pub const NOTICE: u32 = 13;
/// Labels and names.
pub const TEXT: u32 = 12;
/// The caption.
pub const SMALL: u32 = 11;

/// Between the picture's edge and everything in it.
pub const EDGE: u32 = 14;
/// From an axis to the labels of its ticks.
pub const TICK_ROOM: u32 = 10;
/// From one name of the legend to the next.
pub const NAME_STEP: u32 = 18;
/// The sample of a line before its name, with the room behind it.
pub const SAMPLE: u32 = 34;
/// Height of a line of the title, the notice and the caption.
pub const LINES: [u32; 3] = [21, 18, 15];

/// The room that a plot needs to be read.
const LEAST_WIDTH: u32 = 160;
const LEAST_HEIGHT: u32 = 110;

/// The measures of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The lines of the title.
    pub title: Vec<String>,
    /// The lines of the notice.
    pub notice: Vec<String>,
    /// The lines of the caption.
    pub caption: Vec<String>,
    /// The horizontal axis, its ticks, and whether their labels stand upright.
    pub x: Scale,
    /// See `x`.
    pub x_ticks: Vec<Tick>,
    /// See `x`.
    pub upright: bool,
    /// The vertical axis and its ticks.
    pub y: Scale,
    /// See `y`.
    pub y_ticks: Vec<Tick>,
    /// The plot: its left and upper edge, and where it ends.
    pub left: u32,
    /// See `left`.
    pub top: u32,
    /// See `left`.
    pub right: u32,
    /// See `left`.
    pub bottom: u32,
}

impl Layout {
    /// Lays a chart out, if it fits.
    pub fn of(chart: &Chart) -> Result<Self, ChartError> {
        let across = chart.width.saturating_sub(2 * EDGE);
        let title = label::wrap(&chart.title, TITLE, across);
        let notice = label::wrap(chart.notice.as_deref().unwrap_or_default(), NOTICE, across);
        let caption = label::wrap(&chart.caption, SMALL, across);
        let height = |lines: &[String], kind: usize| lines.len() as u32 * LINES[kind];

        let points = || chart.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(&chart.x, points().map(|point| point.x), false);
        let ends: Vec<f64> = match chart.mark {
            Mark::Stacked => chart.piles().into_iter().flatten().map(|(_, to)| to).collect(),
            _ => points()
                .flat_map(|point| {
                    let range = point.range.unwrap_or((point.y, point.y));
                    [point.y, range.0, range.1]
                })
                .collect(),
        };
        // Bars stand on zero, also where all of them hang below it.
        let foot = matches!(chart.mark, Mark::Bars | Mark::Stacked).then_some(0.0);
        let y = Scale::new(&chart.y, ends.into_iter().chain(foot), true);

        // Heights first: they decide how many ticks the vertical axis has, and those how wide their labels are.
        let top = EDGE + height(&title, 0) + height(&notice, 1) + 8;
        let below = |labels: u32| TICK_ROOM + labels + TEXT + 14 + height(&caption, 2) + EDGE;
        let guess = chart.height.saturating_sub(top + below(TEXT));
        let y_ticks = y.ticks((guess / 34) as usize);
        let widest = y_ticks.iter().map(|tick| label::width(&tick.label, TEXT)).max().unwrap_or(0);
        let left = EDGE + TEXT + 8 + widest + TICK_ROOM;
        let names = chart.series.iter().map(|series| label::width(&series.name, TEXT)).max().unwrap_or(0);
        let beside = if names > 0 { 14 + SAMPLE + names + EDGE } else { 2 * EDGE };
        let room = |least: u32| (left + beside + least > chart.width).then_some(left + beside + least);

        if let Some(least) = room(LEAST_WIDTH) {
            return Err(ChartError::TooSmall { side: "width", given: chart.width, least });
        }
        let wide = chart.width - left - beside;
        let (x_ticks, upright) = x_ticks(chart, &x, wide);
        let upright_width = (TEXT + 3) * x_ticks.len() as u32;
        if upright && let Some(least) = room(upright_width) {
            return Err(ChartError::TooSmall { side: "width", given: chart.width, least });
        }
        let longest = x_ticks.iter().map(|tick| label::width(&tick.label, TEXT)).max().unwrap_or(0);
        let below = below(if upright { longest } else { TEXT });
        let least = top + below + LEAST_HEIGHT.max(NAME_STEP * legend_lines(chart));
        if least > chart.height {
            return Err(ChartError::TooSmall { side: "height", given: chart.height, least });
        }
        let (right, bottom) = (left + wide, chart.height - below);
        Ok(Self { title, notice, caption, x, x_ticks, upright, y, y_ticks, left, top, right, bottom })
    }

    /// The pixel of a place in the plot.
    pub fn pixel(&self, x: f64, y: f64) -> (i32, i32) {
        let along = |value: f64, scale: &Scale| scale.along(scale.position(value));
        let (wide, high) = (f64::from(self.right - self.left), f64::from(self.bottom - self.top));
        let column = f64::from(self.left) + along(x, &self.x) * wide;
        let line = f64::from(self.bottom) - along(y, &self.y) * high;
        (column.round() as i32, line.round() as i32)
    }

    /// Where the names stand: beside the ends of their lines, as far as they do not meet; bars have no ends, and their
    /// names stand in their order.
    pub fn names(&self, chart: &Chart) -> Vec<i32> {
        let step = NAME_STEP as i32;
        let (top, bottom) = (self.top as i32 + step / 2, self.bottom as i32 - step / 2);
        let wanted: Vec<i32> = match chart.mark {
            Mark::Bars | Mark::Stacked => (0..chart.series.len()).map(|index| top + step * index as i32).collect(),
            _ => chart
                .series
                .iter()
                .map(|series| series.points.last().map_or(top, |point| self.pixel(point.x, point.y).1))
                .collect(),
        };
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|index| wanted[*index]);
        let mut places = wanted;
        let mut free = top;
        for index in &order {
            places[*index] = places[*index].max(free);
            free = places[*index] + step;
        }
        let mut free = bottom;
        for index in order.iter().rev() {
            places[*index] = places[*index].min(free);
            free = places[*index] - step;
        }
        places
    }
}

fn legend_lines(chart: &Chart) -> u32 {
    let named = chart.series.iter().any(|series| !series.name.is_empty());
    if named { chart.series.len() as u32 } else { 0 }
}

/// The ticks of the horizontal axis, so that their labels do not meet: at every value where these are few, as in a sweep;
/// otherwise at easy steps. Categories have all their labels, upright where they must be.
fn x_ticks(chart: &Chart, scale: &Scale, wide: u32) -> (Vec<Tick>, bool) {
    let column = |tick: &Tick| scale.along(tick.at) * f64::from(wide);
    let fits = |ticks: &[Tick]| {
        ticks.windows(2).all(|pair| {
            let labels = label::width(&pair[0].label, TEXT) + label::width(&pair[1].label, TEXT);
            column(&pair[1]) - column(&pair[0]) >= f64::from(labels) / 2.0 + 8.0
        })
    };
    if let Kind::Categories(names) = &chart.x.kind {
        let ticks: Vec<Tick> =
            names.iter().enumerate().map(|(index, name)| Tick { at: index as f64, label: name.clone() }).collect();
        let upright = !fits(&ticks);
        return (ticks, upright);
    }
    let mut values: Vec<f64> = chart.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let at_values: Vec<Tick> = values.into_iter().map(|value| scale.tick(value)).collect();
    if fits(&at_values) {
        return (at_values, false);
    }
    let most = (wide / 40).max(2) as usize;
    let fitting = (2..=most).rev().map(|most| scale.ticks(most)).find(|ticks| fits(ticks));
    (fitting.unwrap_or_else(|| scale.ticks(2)), false)
}
