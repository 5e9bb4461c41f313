//! Colours, dashes and fonts, for light and dark surroundings.
//!
//! The drawing library knows colours and nothing else. So each role is drawn in a placeholder colour of its own, and
//! [`finish`] puts in its place the colour for light surroundings, for viewers without style sheets, and a class, which the
//! style sheet colours for dark ones.

use plotters::style::RGBColor;

use super::Chart;

/// What a thing in the picture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Background,
    Text,
    /// Text of less weight.
    Aside,
    Notice,
    Grid,
    Axis,
    /// From where to where a bar spreads, also in front of the bar.
    Spread,
    /// The line of a series.
    Line(usize),
    /// The markers or bars of a series.
    Fill(usize),
    /// From where to where a point spreads.
    Whisker(usize),
}

/// Blue in every placeholder. Nothing else is drawn in these colours.
const PLACEHOLDER: u8 = 0xA7;

/// Colours that stay apart for people with colour-blindness (after Okabe and Ito, darkened and lightened until each has a
/// contrast of 3 to the background): for light and for dark surroundings.
const SERIES: [(&str, &str); 9] = [
    ("#0072B2", "#58A9E0"),
    ("#D55E00", "#F4844A"),
    ("#008A63", "#35C39A"),
    ("#A8508A", "#DE94C3"),
    ("#4D4D4D", "#C8C8C8"),
    ("#A97700", "#EDB43C"),
    ("#3C94CC", "#9AD3F7"),
    ("#7A1F4B", "#C98BA8"),
    ("#5B7F1E", "#B5D67A"),
];
/// With nine colours, these make 36 different lines.
const DASHES: [&str; 4] = ["", "7 4", "2 3", "10 3 2 3"];

const FONTS: &str = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif";

impl Role {
    /// Every role that is not of a series.
    const COMMON: [Self; 7] =
        [Self::Background, Self::Text, Self::Aside, Self::Notice, Self::Grid, Self::Axis, Self::Spread];

    /// The placeholder to draw with.
    pub fn color(self) -> RGBColor {
        let (kind, series) = match self {
            Self::Background => (0, 0),
            Self::Text => (1, 0),
            Self::Aside => (2, 0),
            Self::Notice => (3, 0),
            Self::Grid => (4, 0),
            Self::Axis => (5, 0),
            Self::Spread => (6, 0),
            Self::Line(series) => (10, series),
            Self::Fill(series) => (11, series),
            Self::Whisker(series) => (12, series),
        };
        RGBColor(kind, series as u8, PLACEHOLDER)
    }

    /// The role of a placeholder as the library writes it, `#0A03A7`.
    fn of(color: &str) -> Option<Self> {
        let part = |from: usize| u8::from_str_radix(color.get(from..from + 2)?, 16).ok();
        let (kind, series) = (part(1)?, usize::from(part(3)?));
        match (kind, part(5)?) {
            (10, PLACEHOLDER) => Some(Self::Line(series)),
            (11, PLACEHOLDER) => Some(Self::Fill(series)),
            (12, PLACEHOLDER) => Some(Self::Whisker(series)),
            (kind, PLACEHOLDER) => Self::COMMON.get(usize::from(kind)).copied(),
            _ => None,
        }
    }

    fn class(self) -> String {
        match self {
            Self::Background => "background".into(),
            Self::Text => "text".into(),
            Self::Aside => "aside".into(),
            Self::Notice => "notice".into(),
            Self::Grid => "grid".into(),
            Self::Axis => "axis".into(),
            Self::Spread => "spread".into(),
            Self::Line(series) => format!("line-{series}"),
            Self::Fill(series) => format!("fill-{series}"),
            Self::Whisker(series) => format!("whisker-{series}"),
        }
    }

    /// The attribute that carries the colour.
    fn property(self) -> &'static str {
        match self {
            Self::Grid | Self::Axis | Self::Spread | Self::Line(_) | Self::Whisker(_) => "stroke",
            _ => "fill",
        }
    }

    /// For light and for dark surroundings.
    fn colors(self) -> (&'static str, &'static str) {
        match self {
            Self::Background => ("#FFFFFF", "#15181C"),
            Self::Text | Self::Spread => ("#1F2328", "#E6E8EB"),
            Self::Aside => ("#59636E", "#9AA4AF"),
            Self::Notice => ("#B42318", "#FF9B8F"),
            Self::Grid => ("#E4E7EB", "#2B3138"),
            Self::Axis => ("#8C959F", "#6B7580"),
            Self::Line(series) | Self::Fill(series) | Self::Whisker(series) => SERIES[series % SERIES.len()],
        }
    }

    /// The attributes beside the colour.
    fn more(self) -> String {
        match self {
            Self::Line(series) => match DASHES[series % DASHES.len()] {
                "" => " stroke-linejoin=\"round\"".into(),
                dash => format!(" stroke-linejoin=\"round\" stroke-dasharray=\"{dash}\""),
            },
            _ => String::new(),
        }
    }
}

/// Turns what the library has drawn into what is shown.
pub fn finish(drawn: &str, chart: &Chart) -> String {
    let (tag, body) = drawn.split_once('>').unwrap_or((drawn, ""));
    let mut svg = format!("{tag} class=\"ginlab-chart\" role=\"img\">\n<title>{}</title>\n", escaped(&chart.title));
    svg += &format!("<desc>{}</desc>\n", escaped(&chart.description()));
    svg += &sheet(chart.series.len());
    svg += &with_roles(body);
    // XML has no way to write these; a name from a file may hold them.
    svg.retain(|char| char == '\n' || !(char.is_control() || matches!(char, '\u{FFFE}' | '\u{FFFF}')));
    svg
}

/// Texts cannot be taken for colours: the library writes their quotation marks as entities.
fn with_roles(body: &str) -> String {
    let mut text = String::with_capacity(body.len() * 2);
    let mut rest = body;
    while let Some(place) = rest.find("=\"#") {
        let (before, after) = rest.split_at(place + 2);
        text += before;
        let color = after.get(..7).unwrap_or_default();
        match Role::of(color) {
            Some(role) => {
                text += &format!("{}\" class=\"{}\"{}", role.colors().0, role.class(), role.more());
                // The closing quotation mark is written already.
                rest = after.get(8..).unwrap_or_default();
            }
            None => rest = after,
        }
    }
    text + rest
}

fn sheet(series: usize) -> String {
    let of_series = (0..series).flat_map(|index| [Role::Line(index), Role::Fill(index), Role::Whisker(index)]);
    let dark: String = Role::COMMON
        .into_iter()
        .chain(of_series)
        .map(|role| format!(".ginlab-chart .{}{{{}:{}}}\n", role.class(), role.property(), role.colors().1))
        .collect();
    format!(
        "<style>\n.ginlab-chart text{{font-family:{FONTS}}}\n@media (prefers-color-scheme:dark){{\n{dark}}}\n</style>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_comes_back_from_its_placeholder() {
        for role in Role::COMMON.into_iter().chain([Role::Line(0), Role::Fill(23), Role::Whisker(6)]) {
            let RGBColor(red, green, blue) = role.color();
            assert_eq!(Role::of(&format!("#{red:02X}{green:02X}{blue:02X}")), Some(role));
        }
        assert_eq!(Role::of("#FFFFFF"), None);
        assert_eq!(Role::of("#0"), None);
    }

    #[test]
    fn colours_stand_out_from_their_background() {
        let luminance = |color: &str| {
            let part = |from: usize| {
                let value = f64::from(u8::from_str_radix(&color[from..from + 2], 16).unwrap_or(0)) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        };
        let contrast = |one: &str, two: &str| {
            let (one, two) = (luminance(one) + 0.05, luminance(two) + 0.05);
            one.max(two) / one.min(two)
        };
        let (light, dark) = Role::Background.colors();
        let needed = [(Role::Text, 7.0), (Role::Aside, 4.5), (Role::Notice, 4.5)];
        for (role, least) in needed.into_iter().chain((0..SERIES.len()).map(|series| (Role::Line(series), 3.0))) {
            let colors = role.colors();
            assert!(contrast(colors.0, light) >= least, "{role:?} {}", contrast(colors.0, light));
            assert!(contrast(colors.1, dark) >= least, "{role:?} {}", contrast(colors.1, dark));
        }
    }
}
