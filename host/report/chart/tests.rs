//! Tests that create a chart from a small CSV file.
#![allow(clippy::unwrap_used)]

use super::*;

const CSV: &str = "\
schema,experiment,case,device,fabric,mode,rails,size_bytes,grid,block,time_us_min,time_us_p50,time_us_p99,status,suspect
1,proxy,put,gpu:H200,tcp,quiet,1,64,1,32,4.0,5.0,9.0,ok,
1,proxy,put,gpu:H200,tcp,quiet,1,4096,8,32,8.0,10.0,12.0,ok,
1,proxy,put,gpu:H200,tcp,quiet,1,1048576,132,32,450.0,500.0,700.0,ok,
1,proxy,put,gpu:H200,tcp,nbi,1,64,1,32,1.0,2.0,3.0,ok,
1,proxy,put,emulated,model:p5,nbi,1,4096,8,32,3.0,4.0,5.0,ok,
1,proxy,put,gpu:H200,tcp,nbi,4,4096,8,32,2.0,3.0,4.0,ok,above <the> \"\"line\"\"
1,proxy,put,gpu:H200,tcp,nbi,1,1048576,132,32,,,,failed: x,
1,proxy,put,gpu:H200,tcp,nbi,1,,132,32,1.0,2.0,3.0,ok,
";

impl Chart {
    /// Draws only this chart.
    fn drawn(&self) -> String {
        self.svg(&Palette::of([self]))
    }
}

fn records() -> Records {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small & <odd>.csv");
    std::fs::write(&path, CSV).unwrap();
    Records::read(&[path]).unwrap()
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|part| !part.is_empty()).map(String::from).collect()
}

fn query(x: &str, series: &str, filters: &[&str]) -> Query {
    Query {
        x: list(x),
        y: "time_us_p50".into(),
        series: list(series),
        filters: filters.iter().map(|text| Filter::parse(text).unwrap()).collect(),
        width: 700,
        height: 400,
        ..Query::default()
    }
}

/// Asserts that every opened element is closed, and that no text contains markup.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(text.split('&').skip(1).all(|entity| entity.split_once(';').is_some_and(|(name, _)| name.len() < 5)));
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn small_file_becomes_chart() {
    let mut query = query("size_bytes", "mode", &["rails=1"]);
    query.range = Some(["time_us_min".into(), "time_us_p99".into()]);
    let picture = query.chart(&records()).unwrap();
    assert_eq!(
        picture.notes,
        ["left out 2 of 7 rows: 1 with a status other than ok, 1 without size_bytes or time_us_p50"]
    );
    let chart = &picture.chart;
    assert_eq!((&chart.x.kind, &chart.y.kind, chart.mark), (&AxisScale::Log, &AxisScale::Log, Mark::Lines));
    let names: Vec<_> = chart.series.iter().map(|series| (series.name.as_str(), series.points.len())).collect();
    assert_eq!(names, [("quiet", 3), ("nbi", 2)]);
    assert_eq!(chart.series[0].points[0], Point { x: 64.0, y: 5.0, range: Some((4.0, 9.0)) });

    let svg = chart.drawn();
    assert_well_formed(&svg);
    let odd = Chart { title: "a\u{1}\u{1b}[1m \"#0100A7\" <b>".into(), ..chart.clone() }.drawn();
    assert_well_formed(&odd);
    assert!(!odd.contains('\u{1}') && odd.contains("<title>a[1m \"#0100A7\" &lt;b&gt;</title>"), "{odd}");
    assert_eq!(svg, query.chart(&records()).unwrap().chart.drawn(), "the same rows give the same bytes");
    let texts: Vec<&str> =
        svg.split("<text").skip(1).map(|part| part.split(['>', '<']).nth(1).unwrap().trim()).collect();
    insta::assert_snapshot!(texts.join(" | "), @"64 | 256 | 1K | 4K | 16K | 64K | 256K | 1M | 1 | 2 | 5 | 10 | 20 | 50 | 100 | 200 | 500 | 1000 | size (bytes) | time p50 (us) | proxy: time p50 (us) by size (bytes) | Not plain measurements: emulated device in 1 of 5 points, modelled network in 1 of 5 | points · device gpu:H200, emulated · fabric tcp, model:p5 · only rails=1 · small &amp; | &lt;odd&gt;.csv | quiet | nbi");
    let of_color = |element: &str, color: &str| {
        svg.split('<').filter(|tag| tag.starts_with(element) && tag.contains(&format!("=\"{color}\""))).count()
    };
    let (quiet, nbi) = ("#0072b2", "#d55e00");
    assert_eq!((of_color("line", quiet), of_color("line", nbi)), (3 * 3, 2 * 3), "whiskers");
    assert_eq!((of_color("path", quiet), of_color("path", nbi)), (1, 1));
    assert_eq!((of_color("circle", quiet), of_color("rect", nbi)), (3 + 1, 2 + 1), "markers and their legend");
}

#[test]
fn series_keeps_colour_in_all_charts() {
    let both = query("size_bytes", "mode", &["rails=1"]).chart(&records()).unwrap().chart;
    let one = query("size_bytes", "mode", &["mode=nbi"]).chart(&records()).unwrap().chart;
    let palette = Palette::of([&both, &one]);
    assert!(one.svg(&palette).contains("#d55e00") && !one.svg(&palette).contains("#0072b2"));
    assert!(one.drawn().contains("#0072b2"), "alone it has the first colour");
}

#[test]
fn unmeasured_points_have_notice() {
    let notice = |filters: &[&str]| query("size_bytes", "mode,rails", filters).chart(&records()).unwrap().chart.notice;
    assert_eq!(notice(&["mode=quiet"]), None);
    insta::assert_snapshot!(notice(&[]).unwrap(), @"Not plain measurements: emulated device in 1 of 6 points, modelled network in 1 of 6 points, marked as suspect in 1 of 6 points");
    insta::assert_snapshot!(notice(&["device=emulated"]).unwrap(), @"Not plain measurements: emulated device, modelled network");
}

#[test]
fn filters_know_sizes_numbers_and_nothing() {
    let left = |filter: &str| {
        query("size_bytes", "mode", &[filter])
            .chart(&records())
            .map(|picture| picture.chart.series.iter().map(|series| series.points.len()).sum::<usize>())
    };
    assert_eq!(left("size_bytes=4K,64").unwrap(), 5);
    assert_eq!(left("rails=4.0").unwrap(), 1);
    assert_eq!(left("suspect=").unwrap(), 5);
    let refusals = [left("mode=nbii"), left("size_bytes="), left("mod=x")].map(|left| left.unwrap_err().to_string());
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    no rows are left to draw: none has mode=nbii; available: quiet, nbi
    no rows are left to draw: 1 without size_bytes or time_us_p50
    unknown column "mod", did you mean mode?; columns: file, schema, experiment, case, device, fabric, mode, rails, size_bytes, grid, block, time_us_min, time_us_p50, time_us_p99, status, suspect
    "#);
    assert!(Filter::parse("mode").is_err() && Filter::parse("=x").is_err());
}

#[test]
fn categories_keep_order_of_file() {
    let picture = query("grid,block", "mode", &["rails=1", "size_bytes=64,4K,1M"]).chart(&records()).unwrap();
    assert_eq!(picture.chart.x.kind, AxisScale::Categories(list("1x32,8x32,132x32")));
    assert_eq!(picture.chart.x.label, "grid x block");
    let mixed = query("mode,rails", "", &["size_bytes=64"]).chart(&records()).unwrap();
    assert_eq!(
        mixed.chart.x.kind,
        AxisScale::Categories(list("quiet rails=1,nbi rails=1")),
        "a number alone says nothing"
    );
    let mut bars = query("mode", "rails", &["size_bytes=64"]);
    bars.bars = true;
    let svg = bars.chart(&records()).unwrap().chart.drawn();
    assert_well_formed(&svg);
    assert_eq!(svg.matches("<rect").count(), 1 + 2 + 1, "the background, two bars, the legend");
    // If the chart is narrow, the names are vertical. If it is too narrow, the error reports the minimum size.
    let mut narrow = query("grid,block", "mode", &["rails=1", "size_bytes=64,4K,1M"]);
    narrow.width = 330;
    assert!(narrow.chart(&records()).unwrap().chart.drawn().contains("rotate(-90"));
    narrow.width = 210;
    assert!(matches!(narrow.chart(&records()), Err(ChartError::TooSmall { side: "width", .. })));
}

#[test]
fn overlapping_points_are_distinguished() {
    let mut query = query("size_bytes", "mode", &[]);
    let picture = query.chart(&records()).unwrap();
    insta::assert_snapshot!(picture.notes[1], @r#"2 rows of "nbi" share size_bytes 4K; they differ in device, fabric, rails: make some of these columns series, or select rows by them"#);
    assert!(!picture.chart.drawn().contains("points=\"\""));
    query.bars = true;
    assert!(matches!(query.chart(&records()), Err(ChartError::Overlap(_))));
}

#[test]
fn stacked_bars_start_at_preceding_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stages.csv");
    let columns = "case,size_bytes,mode,fabric,stage,p50_us";
    let read = |rows: &str| {
        std::fs::write(&path, format!("{columns}\n{rows}")).unwrap();
        Records::read(std::slice::from_ref(&path)).unwrap()
    };
    let query = Query { y: "p50_us".into(), stacked: true, ..query("mode,size_bytes", "stage", &[]) };
    let rows = "put,64,quiet,tcp,push,1\nput,64,quiet,tcp,wire,4\nput,4096,nbi,tcp,wire,2\nput,4096,nbi,tcp,push,0.5\n";
    let chart = query.chart(&read(rows)).unwrap().chart;
    assert_eq!(
        (chart.mark, &chart.x.kind),
        (Mark::Stacked, &AxisScale::Categories(vec!["quiet 64".into(), "nbi 4K".into()]))
    );
    assert_eq!(piles(&chart), [[(0.0, 1.0), (1.0, 4.0)], [(0.0, 0.5), (0.5, 2.0)]]);
    assert_well_formed(&chart.drawn());
    let error = query.chart(&read("put,64,quiet,tcp,push,-1\n")).unwrap_err().to_string();
    assert_eq!(error, "bars cannot be stacked: p50_us is -1 in stages.csv, line 2");
    let summed = read("put,64,quiet,tcp,push,1\nput,64,quiet,tcp,wire,2\nput,64,quiet,tcp,total,3\n");
    assert_eq!(piles(&query.chart(&summed).unwrap().chart), [[(0.0, 1.0), (1.0, 2.0)]], "the total is no part");
    let twice = read("put,64,quiet,tcp,push,1\nput,64,quiet,tcp,push,2\n");
    assert!(matches!(query.chart(&twice), Err(ChartError::Overlap(_))));
}

/// Returns the stacks as drawn: start and height of each part, in units of the first part's value.
fn piles(chart: &Chart) -> Vec<[(f64, f64); 2]> {
    let svg = chart.drawn();
    let number = |tag: &str, name: &str| -> f64 {
        tag.split_once(&format!(" {name}=\"")).unwrap().1.split_once('"').unwrap().0.parse().unwrap()
    };
    let bars: Vec<(f64, f64)> = svg
        .split('<')
        .filter(|tag| tag.starts_with("rect") && tag.contains("fill=\"#"))
        .map(|tag| (number(tag, "y"), number(tag, "height")))
        .collect();
    let foot = bars[0].0 + bars[0].1;
    let value = chart.series[0].points[0].y;
    let scale = |pixels: f64| (pixels / bars[0].1 * value * 100.0).round() / 100.0;
    let part = |(y, height): (f64, f64)| (scale(foot - y - height), scale(height));
    // The legend's samples follow the bars, one for each series.
    bars[..bars.len() - chart.series.len()].chunks(2).map(|pile| [part(pile[0]), part(pile[1])]).collect()
}
