//! Tables of a `rows` marker: its columns and rows are selections, and a cell is the intersection of both.

use super::Data;
use super::select::Selection;

/// Token that separates the label of a row or a column from its selection.
const ASSIGN: &str = ":=";

/// Returns the Markdown table of a marker.
pub fn table(body: &str, data: &Data) -> Result<String, String> {
    let mut lines = body.lines().map(str::trim);
    let mut common = lines.next().unwrap_or_default().to_owned();
    let mut lines = lines.filter(|line| !line.is_empty());
    let head = loop {
        match lines.next() {
            Some(line) if line.starts_with('|') => break line,
            // The selection may take several lines.
            Some(line) => common = format!("{common} {line}"),
            None => return Err("no head of the table: a line such as | case | 64 B := size_bytes=64".into()),
        }
    };
    let common = Selection::parse(&common)?;
    let (mut labels, mut columns) = (Vec::new(), Vec::new());
    for cell in cells(head) {
        match cell.split_once(ASSIGN) {
            Some((label, selection)) => columns.extend(Selection::parse(selection)?.expanded(label.trim())?),
            None if columns.is_empty() => labels.push(cell),
            None => return Err(format!("the column {cell:?} has no {ASSIGN}; columns of labels come first")),
        }
    }
    let head = labels.iter().copied().chain(columns.iter().map(|(label, _)| label.as_str()));
    let head: Vec<&str> = head.collect();
    let mut table = format!("{}|{}\n", line(&head), "---|".repeat(head.len()));
    for text in lines {
        let cells = cells(text);
        let Some((label, selection)) = cells.last().and_then(|last| last.split_once(ASSIGN)) else {
            if cells.len() != head.len() {
                return Err(format!("a row of {} cells, but {} columns: {text}", cells.len(), head.len()));
            }
            table += &line(&cells);
            continue;
        };
        if cells.len() != labels.len() {
            return Err(format!("a row of {} labels, but {} columns of labels: {text}", cells.len(), labels.len()));
        }
        let label = [&cells[..cells.len() - 1], &[label.trim()]].concat().join(" | ");
        for (label, row) in Selection::parse(selection)?.expanded(&label)? {
            let mut made = vec![label];
            for (title, column) in &columns {
                let cell = common.with(column).with(&row).cell(data);
                made.push(cell.map_err(|why| format!("row {}, column {title}: {why}", made[0]))?);
            }
            table += &line(&made.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    Ok(table)
}

fn cells(line: &str) -> Vec<&str> {
    let line = line.strip_prefix('|').unwrap_or(line);
    line.strip_suffix('|').unwrap_or(line).split('|').map(str::trim).collect()
}

fn line(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | ")).replace("  |", " |")
}
