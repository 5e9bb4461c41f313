//! Drawing of a chart with kuva, which provides scales, ticks, legends and margins. This module chooses what is shown,
//! the colours, and ticks at powers of two for sizes.

use std::sync::Arc;

use kuva::plot::scatter::MarkerShape;
use kuva::plot::{BarPlot, LinePlot, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;

use super::{AxisScale, Chart, ChartError, Mark, Palette, Point, label};

/// Maximum number of ticks on an axis of powers of two.
const POWERS: f64 = 9.0;
/// Approximate width of a character in the legend and in tick labels, in pixels.
const CHARACTER: u32 = 7;
/// Maximum number of characters per line of a name in the legend.
const NAME: usize = 30;
/// Minimum size of a chart without its names, in pixels.
const LEAST: (u32, u32) = (230, 230);

impl Chart {
    /// Returns an error if names and labels do not fit into the size of the chart.
    pub(super) fn check_room(&self) -> Result<(), ChartError> {
        let names = self.series.iter().map(|series| series.name.chars().count().min(NAME)).max().unwrap_or_default();
        let lines = self.series.iter().map(|series| series.name.chars().count().div_ceil(NAME)).sum::<usize>();
        let width = LEAST.0 + CHARACTER * names as u32;
        if self.width < width {
            return Err(ChartError::TooSmall { side: "width", given: self.width, least: width });
        }
        let upright = if self.is_upright() { CHARACTER * self.longest_category() as u32 } else { 0 };
        let height = (LEAST.1 + upright).max(110 + 18 * lines as u32);
        if self.height < height {
            return Err(ChartError::TooSmall { side: "height", given: self.height, least: height });
        }
        Ok(())
    }

    fn categories(&self) -> &[String] {
        if let AxisScale::Categories(names) = &self.x.kind { names } else { &[] }
    }

    fn longest_category(&self) -> usize {
        self.categories().iter().map(|name| name.chars().count()).max().unwrap_or_default()
    }

    /// Returns whether the names of categories would overlap if they were horizontal.
    fn is_upright(&self) -> bool {
        let room = self.width.saturating_sub(LEAST.0) / self.categories().len().max(1) as u32;
        CHARACTER * self.longest_category() as u32 > room
    }

    /// Returns the position of a value on the horizontal axis. Sizes and counts are swept in powers of two.
    fn place(&self, x: f64) -> f64 {
        match self.x.kind {
            AxisScale::Linear => x,
            AxisScale::Log => x.log2(),
            // kuva counts categories from 1.
            AxisScale::Categories(_) => x + 1.0,
        }
    }

    fn plots(&self, palette: &Palette) -> Vec<Plot> {
        match self.mark {
            Mark::Bars | Mark::Stacked => vec![self.bars(palette).into()],
            mark => self.curves(mark == Mark::Lines, palette),
        }
    }

    fn bars(&self, palette: &Palette) -> BarPlot {
        let of = |category: usize, series: usize| {
            self.series[series].points.iter().find(|point| point.x == category as f64).copied()
        };
        let mut plot = BarPlot::new();
        let mut spreads = Vec::new();
        for (category, name) in self.categories().iter().enumerate() {
            let points: Vec<Option<Point>> = (0..self.series.len()).map(|series| of(category, series)).collect();
            let values = points
                .iter()
                .zip(&self.series)
                .map(|(point, series)| (point.map_or(0.0, |point| point.y), palette.color(&series.name)));
            plot = plot.with_group(name.as_str(), values);
            spreads.extend(points.iter().map(|point| point.map_or((0.0, 0.0), |point| point.spread())));
        }
        if self.series.iter().any(|series| series.points.iter().any(|point| point.range.is_some())) {
            plot = plot.with_asymmetric_error(spreads);
        }
        if self.is_named() {
            plot = plot.with_legend(self.series.iter().map(|series| series.name.as_str()).collect());
        }
        if self.mark == Mark::Stacked { plot.with_stacked() } else { plot }
    }

    /// Draws lines before markers, so that no line covers a marker.
    fn curves(&self, lines: bool, palette: &Palette) -> Vec<Plot> {
        let places = |points: &[Point]| points.iter().map(|point| (self.place(point.x), point.y)).collect::<Vec<_>>();
        let mut plots: Vec<Plot> = Vec::new();
        for series in &self.series {
            // Several points with the same x have no line.
            if lines && series.points.len() > 1 && series.points.windows(2).all(|pair| pair[0].x < pair[1].x) {
                let line = LinePlot::new().with_data(places(&series.points)).with_color(palette.color(&series.name));
                plots.push(line.with_stroke_width(2.0).with_line_style(palette.style(&series.name)).into());
            }
        }
        for series in &self.series {
            let mut marks = ScatterPlot::new()
                .with_data(places(&series.points))
                .with_y_err_asymmetric(series.points.iter().map(Point::spread))
                .with_color(palette.color(&series.name))
                .with_marker(palette.marker(&series.name))
                .with_size(4.0);
            if series.points.iter().all(|point| point.range.is_none()) {
                marks.data.iter_mut().for_each(|point| point.y_err = None);
            }
            plots.push(if self.is_named() { marks.with_legend(series.name.as_str()) } else { marks }.into());
        }
        plots
    }

    fn is_named(&self) -> bool {
        self.series.iter().any(|series| !series.name.is_empty())
    }

    fn layout(&self, plots: &[Plot]) -> Layout {
        let about: Vec<&str> = self.notice.as_deref().into_iter().chain([self.caption.as_str()]).collect();
        let mut layout = Layout::auto_from_plots(plots)
            .with_width(self.width.into())
            .with_height(self.height.into())
            .with_title(self.title.as_str())
            .with_title_size(15)
            .with_title_wrap((self.width / 12) as usize)
            .with_subtitle(about.join(" · "))
            .with_subtitle_size(11)
            .with_subtitle_wrap((self.width / 8) as usize)
            .with_legend_wrap(NAME)
            .with_legend_box(false)
            .with_label_size(12)
            .with_tick_size(11)
            .with_body_size(12)
            .with_font_family("system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif")
            .with_x_label(self.x.label.as_str())
            .with_y_label(self.y.label.as_str());
        let shown = |binary: bool| move |value: f64| if binary { label::binary(value) } else { label::plain(value) };
        let (shown_x, shown_y) = (shown(self.x.binary), shown(self.y.binary));
        let places = || self.series.iter().flat_map(|series| &series.points).map(|point| self.place(point.x));
        let (low, high) = places().fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        match &self.x.kind {
            AxisScale::Categories(names) => {
                layout = layout.with_x_categories(names.clone());
                if self.is_upright() {
                    layout = layout.with_x_tick_rotate(-90.0);
                }
            }
            AxisScale::Log => {
                let step = ((high - low) / POWERS).ceil().max(1.0);
                layout = layout
                    .with_x_axis_min((low / step).floor() * step)
                    .with_x_axis_max(((high / step).ceil() * step).max(low + step))
                    .with_x_tick_step(step)
                    .with_x_tick_format(TickFormat::Custom(Arc::new(move |at| shown_x(at.exp2().round()))));
            }
            AxisScale::Linear => {
                layout = layout.with_x_tick_format(TickFormat::Custom(Arc::new(shown_x)));
                // A number of ranks is an integer, so there are no ticks in between.
                if high - low <= POWERS && places().all(|at| at.fract() == 0.0) {
                    layout = layout.with_x_tick_step(1.0);
                }
            }
        }
        if self.y.kind == AxisScale::Log {
            layout = layout.with_log_y();
        } else if self.series.iter().flat_map(|series| &series.points).all(|point| point.y >= 0.0) {
            layout = layout.with_y_axis_min(0.0);
        }
        layout.with_y_tick_format(TickFormat::Custom(Arc::new(shown_y)))
    }

    /// Returns the chart as an SVG document. The palette assigns a colour to the name of each series.
    pub fn svg(&self, palette: &Palette) -> String {
        let plots = self.plots(palette);
        let layout = self.layout(&plots);
        let drawn = kuva::render_to_svg(plots, layout);
        let (tag, body) = drawn.split_once('>').unwrap_or(("<svg", &drawn));
        // Removes a comment about the library, and the clip path, which would cut off half of the markers on the axes.
        let body = without(&without(body, "<!--", "-->"), "<defs>", "</defs>");
        let body = without(&body, " clip-path=\"", "\"");
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (title, about) = (escaped(&self.title), escaped(&self.description()));
        let (width, height) = (self.width, self.height);
        let mut svg = format!(
            "{tag} viewBox=\"0 0 {width} {height}\" class=\"ginlab-chart\" role=\"img\">\n<title>{title}</title>\n\
             <desc>{about}</desc>\n{body}\n"
        );
        // XML cannot represent these characters, which a name from a file may contain.
        svg.retain(|char| char == '\n' || !(char.is_control() || matches!(char, '\u{FFFE}' | '\u{FFFF}')));
        svg
    }
}

/// Returns `text` without the part from the first `from` to the next `to`, both included.
fn without(text: &str, from: &str, to: &str) -> String {
    let parts = text.split_once(from).and_then(|(before, rest)| Some((before, rest.split_once(to)?.1)));
    parts.map_or_else(|| text.to_owned(), |(before, after)| format!("{before}{after}"))
}

impl Point {
    /// Returns the lengths of the range below and above the value.
    fn spread(&self) -> (f64, f64) {
        self.range.map_or((0.0, 0.0), |(low, high)| ((self.y - low).max(0.0), (high - self.y).max(0.0)))
    }
}

pub(super) const MARKERS: [MarkerShape; 5] =
    [MarkerShape::Circle, MarkerShape::Square, MarkerShape::Triangle, MarkerShape::Diamond, MarkerShape::TriangleDown];
