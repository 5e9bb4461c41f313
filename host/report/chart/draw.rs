//! Draws a chart with plotters: its mesh and axes, then series and legend.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::layout::{self, Layout};
use super::scale::{Scale, Tick};
use super::style::{self, Role};
use super::{Chart, ChartError, Kind, Mark, Point};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The library draws text smaller than it is told, by this factor.
const FONT: f64 = 1.24;
/// Half the width of a marker, and of a whisker's ends.
const MARKER: i32 = 4;

/// Draws the chart.
pub fn svg(chart: &Chart) -> Result<String, ChartError> {
    let layout = Layout::of(chart)?;
    let mut drawn = String::new();
    draw(chart, &layout, &mut drawn).map_err(|error| ChartError::Draw(error.to_string()))?;
    Ok(style::finish(&drawn, chart))
}

/// An axis as the library wants it, with our ticks and their names.
struct Ticked<'a> {
    scale: &'a Scale,
    ticks: &'a [Tick],
}

impl Ranged for Ticked<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.scale.along(*position) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.scale.low..self.scale.high
    }
}

impl ValueFormatter<f64> for Ticked<'_> {
    fn format_ext(&self, position: &f64) -> String {
        self.ticks.iter().find(|tick| tick.at == *position).map(|tick| tick.label.clone()).unwrap_or_default()
    }
}

/// Errors of the library, which draws into memory.
type Drawing = Result<(), Box<dyn std::error::Error>>;

fn draw(chart: &Chart, layout: &Layout, out: &mut String) -> Drawing {
    let area = SVGBackend::with_string(out, (chart.width, chart.height)).into_drawing_area();
    // The library's own fill leaves the last pixel of each side.
    let corners = [(0, 0), (chart.width as i32, chart.height as i32)];
    area.draw(&Rectangle::new(corners, Role::Background.color().filled()))?;
    draw_texts(&area, chart, layout)?;
    draw_axes(&area, chart, layout)?;
    match chart.mark {
        Mark::Bars => draw_bars(&area, chart, layout)?,
        Mark::Stacked => draw_piles(&area, chart, layout)?,
        Mark::Lines | Mark::Points => draw_points(&area, chart, layout)?,
    }
    draw_legend(&area, chart, layout)?;
    area.present()?;
    Ok(())
}

/// A text in a role, before it is anchored.
fn font(size: u32, weight: FontStyle, role: Role) -> TextStyle<'static> {
    let mut style = TextStyle::from(("sans-serif", f64::from(size) * FONT, weight).into_font());
    style.color = role.color().to_backend_color();
    style
}

fn draw_texts(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    let mut top = layout::EDGE as i32;
    let caption = layout.caption.len() as u32 * layout::LINES[2];
    let blocks = [
        (&layout.title, font(layout::TITLE, FontStyle::Bold, Role::Text), layout::LINES[0]),
        (&layout.notice, font(layout::NOTICE, FontStyle::Bold, Role::Notice), layout::LINES[1]),
        (&layout.caption, font(layout::SMALL, FontStyle::Normal, Role::Aside), layout::LINES[2]),
    ];
    for (index, (lines, style, height)) in blocks.into_iter().enumerate() {
        if index == 2 {
            top = (chart.height - layout::EDGE - caption) as i32 + 4;
        }
        for line in lines {
            area.draw_text(line, &style.pos(Pos::new(HPos::Left, VPos::Top)), (layout::EDGE as i32, top))?;
            top += height as i32;
        }
    }
    Ok(())
}

fn draw_axes(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    let bottom_room = chart.height - layout.bottom;
    let mut mesh = ChartBuilder::on(area)
        .margin_top(layout.top)
        .margin_right(chart.width - layout.right)
        .x_label_area_size(bottom_room)
        .y_label_area_size(layout.left)
        .build_cartesian_2d(
            Ticked { scale: &layout.x, ticks: &layout.x_ticks },
            Ticked { scale: &layout.y, ticks: &layout.y_ticks },
        )?;
    let text = font(layout::TEXT, FontStyle::Normal, Role::Text);
    let nameless = |_: &f64| String::new();
    let mut style = mesh.configure_mesh();
    style
        .max_light_lines(0)
        .light_line_style(TRANSPARENT)
        .bold_line_style(Role::Grid.color())
        .axis_style(Role::Axis.color())
        .label_style(text.clone());
    if layout.upright {
        style.x_label_formatter(&nameless);
    }
    if matches!(chart.x.kind, Kind::Categories(_)) {
        style.disable_x_mesh();
    }
    style.draw()?;

    let (left, bottom) = (layout.left as i32, layout.bottom as i32);
    let (middle, centre) = ((left + layout.right as i32) / 2, (layout.top as i32 + bottom) / 2);
    if layout.upright {
        let upright = text.transform(FontTransform::Rotate270).pos(Pos::new(HPos::Right, VPos::Center));
        for tick in &layout.x_ticks {
            let column = layout.pixel(tick.at, 0.0).0;
            area.draw_text(&tick.label, &upright, (column, bottom + layout::TICK_ROOM as i32))?;
        }
    }
    let caption = layout.caption.len() as u32 * layout::LINES[2];
    let below = (chart.height - layout::EDGE - caption) as i32 - 4;
    area.draw_text(&chart.x.label, &text.pos(Pos::new(HPos::Center, VPos::Bottom)), (middle, below))?;
    let turned = text.transform(FontTransform::Rotate270).pos(Pos::new(HPos::Center, VPos::Top));
    area.draw_text(&chart.y.label, &turned, (layout::EDGE as i32, centre))?;
    Ok(())
}

fn draw_points(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    // Layer by layer, so that no line hides a marker.
    for (index, series) in chart.series.iter().enumerate() {
        for point in &series.points {
            draw_whisker(area, layout, Role::Whisker(index), *point, layout.pixel(point.x, point.y).0)?;
        }
    }
    for (index, series) in chart.series.iter().enumerate() {
        let pixels: Vec<(i32, i32)> = series.points.iter().map(|point| layout.pixel(point.x, point.y)).collect();
        // Through several points at one place there is no line.
        let single = series.points.windows(2).all(|pair| pair[0].x < pair[1].x);
        if chart.mark == Mark::Lines && single && pixels.len() > 1 {
            area.draw(&PathElement::new(pixels, Role::Line(index).color().stroke_width(2)))?;
        }
    }
    for (index, series) in chart.series.iter().enumerate() {
        for point in &series.points {
            draw_marker(area, index, layout.pixel(point.x, point.y))?;
        }
    }
    Ok(())
}

fn draw_bars(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    // Of the room of a category, a fifth lies between it and the next.
    let width = 0.8 / chart.series.len().max(1) as f64;
    for (index, series) in chart.series.iter().enumerate() {
        let from = -0.4 + width * index as f64;
        for point in &series.points {
            let (left, foot) = layout.pixel(point.x + from, 0.0);
            let (right, end) = layout.pixel(point.x + from + width, point.y);
            let gap = i32::from(right - left > 4);
            let corners = [(left, foot.min(end)), ((right - gap).max(left + 1), foot.max(end))];
            area.draw(&Rectangle::new(corners, Role::Fill(index).color().filled()))?;
        }
    }
    for (index, series) in chart.series.iter().enumerate() {
        for point in &series.points {
            let middle = layout.pixel(point.x - 0.4 + width * (index as f64 + 0.5), 0.0).0;
            draw_whisker(area, layout, Role::Spread, *point, middle)?;
        }
    }
    Ok(())
}

fn draw_piles(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    for ((index, series), places) in chart.series.iter().enumerate().zip(chart.piles()) {
        for (point, (from, to)) in series.points.iter().zip(places) {
            let (left, foot) = layout.pixel(point.x - 0.3, from);
            let (right, end) = layout.pixel(point.x + 0.3, to);
            // A line of the background keeps neighbours of like colours apart.
            let corners = [(left, (end + 1).min(foot)), (right, foot)];
            area.draw(&Rectangle::new(corners, Role::Fill(index).color().filled()))?;
        }
    }
    Ok(())
}

fn draw_whisker(area: &Area, layout: &Layout, role: Role, point: Point, column: i32) -> Drawing {
    let Some((low, high)) = point.range else { return Ok(()) };
    let (low, high) = (layout.pixel(point.x, low).1, layout.pixel(point.x, high).1);
    let bars = [
        [(column, low), (column, high)],
        [(column - MARKER, low), (column + MARKER, low)],
        [(column - MARKER, high), (column + MARKER, high)],
    ];
    for bar in bars {
        area.draw(&PathElement::new(bar.to_vec(), role.color()))?;
    }
    Ok(())
}

/// A marker. With seven colours, five shapes make 35 different ones.
fn draw_marker(area: &Area, series: usize, (x, y): (i32, i32)) -> Drawing {
    let color = Role::Fill(series).color();
    let far = MARKER + 1;
    let corners: &[(i32, i32)] = match series % 5 {
        0 => {
            area.draw(&Circle::new((x, y), MARKER, color.filled()))?;
            return Ok(());
        }
        1 => &[(-MARKER, -MARKER), (MARKER, -MARKER), (MARKER, MARKER), (-MARKER, MARKER)],
        2 => &[(0, -far), (far, MARKER), (-far, MARKER)],
        3 => &[(0, -far), (far, 0), (0, far), (-far, 0)],
        _ => &[(0, far), (far, -MARKER), (-far, -MARKER)],
    };
    let corners: Vec<(i32, i32)> = corners.iter().map(|corner| (x + corner.0, y + corner.1)).collect();
    area.draw(&Polygon::new(corners, color))?;
    Ok(())
}

fn draw_legend(area: &Area, chart: &Chart, layout: &Layout) -> Drawing {
    if chart.series.iter().all(|series| series.name.is_empty()) {
        return Ok(());
    }
    let left = layout.right as i32 + 14;
    let (right, middle) = (left + 26, left + 13);
    let text = font(layout::TEXT, FontStyle::Normal, Role::Text).pos(Pos::new(HPos::Left, VPos::Center));
    for ((index, series), y) in chart.series.iter().enumerate().zip(layout.names(chart)) {
        match chart.mark {
            Mark::Bars | Mark::Stacked => {
                let corners = [(middle - 6, y - 6), (middle + 6, y + 6)];
                area.draw(&Rectangle::new(corners, Role::Fill(index).color().filled()))?;
            }
            mark => {
                if mark == Mark::Lines {
                    let line = vec![(left, y), (right, y)];
                    area.draw(&PathElement::new(line, Role::Line(index).color().stroke_width(2)))?;
                }
                draw_marker(area, index, (middle, y))?;
            }
        }
        area.draw_text(&series.name, &text, (left + layout::SAMPLE as i32, y))?;
    }
    Ok(())
}
