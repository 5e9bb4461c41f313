//! Charts of a `chart` marker.

use std::path::PathBuf;

use super::Data;
use super::select::{MarkerWord, words};
use crate::chart::{Filter, Palette, Query, Records};

/// Returns the name and the text of the SVG file of a marker.
pub fn svg(body: &str, data: &Data) -> Result<(String, String), String> {
    let mut query = Query::default();
    let (mut target, mut files, mut names) = (None, Vec::new(), None);
    let list = |value: &str| value.split(',').map(str::to_owned).collect::<Vec<_>>();
    for word in words(body)? {
        match word {
            MarkerWord::Names(given) if given[0].ends_with(".csv") => files.extend(given),
            MarkerWord::Names(given) if given[0].ends_with(".svg") => target = given.into_iter().next(),
            MarkerWord::Names(given) => return Err(format!("neither a .csv nor a .svg file: {}", given.join(","))),
            MarkerWord::Condition(name, values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                query.filters.push(Filter::one_of(&name, &values));
            }
            MarkerWord::Option(name, value) => match (name.as_str(), value.as_str()) {
                ("x", _) => query.x = list(&value),
                ("y", _) => query.y = value,
                ("series", _) => query.series = list(&value),
                ("title", _) => query.title = Some(value),
                ("x-label", _) => query.x_label = Some(value),
                ("names", _) => names = Some(list(&value)),
                ("x-scale", "log" | "linear") => query.x_log = Some(value == "log"),
                ("y-scale", "log" | "linear") => query.y_log = Some(value == "log"),
                ("bars", "stacked") => query.stacked = true,
                _ => {
                    let known =
                        "x, y, series, title, x-label, names, x-scale:log|linear, y-scale:log|linear, bars:stacked";
                    return Err(format!("unknown option {name}:{value}; options: {known}"));
                }
            },
        }
    }
    let target = target.ok_or("no FILE.svg to write")?;
    let paths: Vec<PathBuf> = files.iter().map(|file| data.path(file)).collect();
    let records = match names {
        Some(names) if names.len() != files.len() => {
            return Err(format!("{} names for {} files", names.len(), files.len()));
        }
        Some(names) => Records::read_as(&paths, &names),
        None => Records::read(&paths),
    };
    let picture = records.and_then(|records| query.chart(&records)).map_err(|error| error.to_string())?;
    Ok((target, picture.chart.svg(&Palette::of([&picture.chart]))))
}
