//! `ginlab report` as a user runs it: one self-contained page, and every error in one line.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{JobOutput, contents, ginlab, run};
use crate::passed;
use scraper::{ElementRef, Html, Selector};

const COLUMNS: &str =
    "schema,experiment,case,device,fabric,mode,size_bytes,grid,time_us_min,time_us_p50,time_us_p99,rate_mops,status";

/// Creates a directory with one file of these rows.
fn folder(rows: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    folder
}

/// Returns rows of three sizes of a case.
fn rows(case: &str, device: &str, fabric: &str) -> String {
    [64, 1024, 65536]
        .map(|size| format!("1,proxy,{case},{device},{fabric},nbi,{size},1,{size},{size}.5,1{size},0.5,ok\n"))
        .concat()
}

fn report(folder: &Path, args: &str) -> Command {
    let mut command = ginlab(&format!("report {args}"));
    command.current_dir(folder);
    command
}

fn page(folder: &Path, args: &str) -> (JobOutput, Html) {
    let done = run(report(folder, args)).expect(0);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    let html = Html::parse_document(&done.stdout);
    (done, html)
}

fn all<'a>(html: &'a Html, selector: &str) -> Vec<ElementRef<'a>> {
    html.select(&Selector::parse(selector).unwrap()).collect()
}

fn text(element: &ElementRef) -> String {
    element.text().collect()
}

/// Checks the properties of every page.
#[track_caller]
fn assert_sound(source: &str, html: &Html) {
    assert_eq!(html.errors, Vec::<String>::new(), "a browser would have to mend it");
    for element in all(html, "*") {
        assert!(
            !matches!(element.value().name(), "script" | "link" | "iframe" | "img" | "object"),
            "{}",
            element.html()
        );
        for (name, value) in element.value().attrs() {
            let within = name == "href" && (value.starts_with('#') || is_part(value));
            assert!(within || !matches!(name, "src" | "href" | "srcset" | "data" | "action"), "{name}={value}");
            assert!(!name.starts_with("on"), "{name}={value}");
            // XML namespace names are not fetched.
            assert!(name.starts_with("xmlns") || !value.contains("://"), "{name}={value}");
        }
    }
    for style in all(html, "style") {
        let style = text(&style);
        assert!(!["url(", "@import", "://"].iter().any(|part| style.contains(part)), "{style}");
    }
    assert!(all(html, "meta[name=viewport]").len() == 1 && source.contains("prefers-color-scheme: dark"));
    for figure in all(html, "figure") {
        let inside =
            |selector: &str| figure.select(&Selector::parse(selector).unwrap()).map(|found| text(&found)).next();
        assert!(inside("svg > title").is_some_and(|title| !title.is_empty()), "{}", figure.html());
        assert!(inside("svg > desc").is_some_and(|about| !about.is_empty()), "{}", figure.html());
    }
    let mut ids: Vec<&str> = all(html, "[id]").iter().filter_map(|element| element.value().attr("id")).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id stands twice");
    for link in all(html, "a") {
        let target = link.value().attr("href").unwrap();
        assert!(is_part(target) || ids.contains(&target.trim_start_matches('#')), "{target} leads nowhere");
    }
}

/// Returns whether a link leads to another page in the same directory.
fn is_part(link: &str) -> bool {
    link.ends_with(".html") && !link.contains(['/', ':'])
}

/// Runs a test of the page for data/. The page depends only on the command and on the files, including their headers.
fn of_data(name: &str, test: impl FnOnce(&Path)) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let mut files = vec![PathBuf::from(env!("CARGO_BIN_EXE_ginlab"))];
    files_in(&data, &mut files);
    files.sort();
    passed::once(name, &contents(&files), || test(&data));
}

/// A line per host and figure reports whether the rails reach the rates expected of the instance type.
#[test]
fn rails_are_compared_with_expected_rates() {
    let mut rows = "schema,experiment,case,device,fabric,mode,size_bytes,time_us_p50,bandwidth_gbytes_s,status,node,rank,rail,domain\n".to_owned();
    for (host, rank) in [("a", 0), ("b", 1)] {
        for rail in 0..4 {
            let alone = if (host, rail) == ("b", 2) { 3.0 } else { 12.0 };
            for (mode, rate) in [("alone", alone), ("together", alone - 0.5)] {
                let end = format!("{host},{rank},{rail},rdmap{rail}s0-rdm");
                rows += &format!("1,write,rail,gpu:H100,efa,{mode},16777216,1398,{rate},ok,{end}\n");
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rails.csv"), rows).unwrap();
    let lines = |done: &JobOutput| -> Vec<String> {
        let lines = done.stderr.lines().filter_map(|line| line.strip_prefix("# expected: p5.48xlarge: "));
        lines.map(str::to_owned).collect()
    };
    let expected = [
        "a: slowest of 4 rails (rdmap0s0-rdm of rank 0): 96.0 of 97.4 Gb/s, 99 %: ok",
        "a: 4 rails of a GPU (slowest: rank 0): 46.0 of 48.7 GB/s, 94 %: ok",
        "b: slowest of 4 rails (rdmap2s0-rdm of rank 1): 24.0 of 97.4 Gb/s, 25 %: low",
        "b: 4 rails of a GPU (slowest: rank 1): 37.0 of 48.7 GB/s, 76 %: low",
    ];
    let (done, html) = page(folder.path(), "rails.csv -o - --instance ml.p5.48xlarge");
    assert_eq!(lines(&done), expected);
    assert_sound(&done.stdout, &html);
    let cells: Vec<String> =
        all(&html, "[aria-label='expected figures'] td.faster, [aria-label='expected figures'] td.slower")
            .iter()
            .map(text)
            .collect();
    assert_eq!(cells, ["ok", "ok", "low", "low"]);
    let (done, html) = page(folder.path(), "rails.csv -o -");
    assert_eq!((lines(&done).len(), all(&html, "[aria-label='expected figures']").len()), (0, 0), "no instance type");
    std::fs::write(folder.path().join("rails.header.json"), r#"{"instance": "p5.48xlarge"}"#).unwrap();
    assert_eq!(lines(&page(folder.path(), "rails.csv -o -").0), expected);
    let unknown = run(report(folder.path(), "rails.csv -o - --instance p5.49xlarge")).expect(2);
    assert!(unknown.complaint().contains("unknown instance type \"p5.49xlarge\""), "{}", unknown.stderr);
}

#[test]
fn repository_results_form_page() {
    of_data("the_results_become_a_page", become_a_page);
}

fn become_a_page(data: &Path) {
    let work = tempfile::tempdir().unwrap();
    let args = format!("{} -o page.html --svg pictures", data.display());
    let done = run(report(work.path(), &args)).expect(0);
    assert_eq!(done.stdout, "");
    let source = std::fs::read_to_string(work.path().join("page.html")).unwrap();
    let html = Html::parse_document(&source);
    assert_sound(&source, &html);
    for experiment in ["proxy", "queue", "ipc", "write", "sendrecv", "all2all"] {
        assert_eq!(all(&html, &format!("section#{experiment} > h2")).len(), 1, "{experiment}");
        assert!(!all(&html, &format!("section#{experiment} figure")).is_empty(), "{experiment}");
    }
    // Every row of every file is in a table.
    let mut files = Vec::new();
    files_in(data, &mut files);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    let rows = files.iter().map(|file| csv::Reader::from_path(file).unwrap().records().count()).sum::<usize>();
    assert_eq!(all(&html, "article").len(), files.len());
    assert_eq!(all(&html, "article tbody tr").len(), rows);
    for part in ["7562a8ccddc2", "NVIDIA H200", "ginlab ipc -d gpu"] {
        assert!(source.contains(part), "{part}");
    }
    let pictures: Vec<PathBuf> =
        work.path().join("pictures").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pictures.len(), all(&html, "figure").len());
    let titles: Vec<String> = all(&html, "figure svg > title").iter().map(text).collect();
    for part in [
        "proxy: time by size",
        "queue: comparison of queues",
        "ipc: bandwidth by blocks",
        "speed relative to the baseline",
    ] {
        assert!(titles.iter().any(|title| title.contains(part)), "{part}");
    }
}

#[test]
fn newest_page_starts_with_headlines() {
    of_data("newest_page_starts_with_headlines", begin_with_headlines);
}

fn begin_with_headlines(data: &Path) {
    let work = tempfile::tempdir().unwrap();
    let done = run(report(work.path(), &format!("--newest {} -o page.html", data.display()))).expect(0);
    assert!(done.stderr.contains("# left out: files whose points are all in newer files: "), "{}", done.stderr);
    let read = |name: &str| std::fs::read_to_string(work.path().join(name)).unwrap();
    let source = read("page.html");
    assert!(source.len() <= 3_000_000, "a person reads this page, not {} bytes", source.len());
    let html = Html::parse_document(&source);
    assert_sound(&source, &html);
    for experiment in ["proxy", "queue", "ipc", "shmem", "collective", "jacobi"] {
        assert_eq!(all(&html, &format!("section#{experiment} figure")).len(), 1, "{experiment}");
    }
    // Links lead to pages with the rest, and back.
    let links: Vec<&str> = all(&html, "main a").iter().map(|link| link.value().attr("href").unwrap()).collect();
    assert_eq!(links.len(), all(&html, "main > section").len() - 2, "all but the findings and the explanation");
    for link in links {
        let source = read(link);
        let part = Html::parse_document(&source);
        assert_sound(&source, &part);
        assert!(!all(&part, "article").is_empty(), "{link}");
        assert_eq!(all(&part, "nav a")[0].value().attr("href"), Some("page.html"), "{link}");
    }
    // The table is complete: modelled figures and unmeasured ones are marked as such.
    let table: Vec<Vec<String>> = all(&html, "#found .findings tbody tr")
        .iter()
        .map(|row| row.select(&Selector::parse("td").unwrap()).map(|cell| text(&cell)).collect())
        .collect();
    let of = |what: &str| table.iter().find(|row| row[0].starts_with(what)).unwrap_or_else(|| panic!("{what}"));
    assert_eq!(of("put of 64 B until quiet returns, EFA cards")[1], "not measured");
    for row in &table {
        assert_eq!(row[0].ends_with(" modelled"), row[5].contains("model:"), "{row:?}");
        assert_eq!(row[1] == "not measured", row[6].is_empty(), "{row:?}");
    }
    let barrier = of("barrier of two PEs");
    assert!(barrier[2] == "NVSHMEM" && !barrier[4].is_empty() && barrier[6].starts_with("ginlab shmem"), "{barrier:?}");
    assert!(run(report(work.path(), "--newest a --against b -o -")).expect(2).stderr.contains("cannot be used with"));
}

fn files_in(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_in(&path, files);
        } else {
            files.push(path);
        }
    }
}

#[test]
fn page_is_deterministic() {
    let folder = folder(&rows("put", "gpu:H200", "tcp"));
    let (first, html) = page(folder.path(), "run.csv -o -");
    assert_sound(&first.stdout, &html);
    assert_eq!(page(folder.path(), "run.csv -o -").0.stdout, first.stdout);
    run(report(folder.path(), "run.csv -o page.html")).expect(0);
    assert_eq!(std::fs::read_to_string(folder.path().join("page.html")).unwrap(), first.stdout);
    assert!(all(&html, ".unreal").is_empty(), "nothing here is emulated or modelled");
}

#[test]
fn emulated_and_modelled_runs_are_marked() {
    for (device, fabric, way) in [
        ("emulated", "tcp", "emulated"),
        ("gpu:H200", "model:p5", "modelled"),
        ("emulated", "model:p5", "emulated, modelled"),
    ] {
        let folder = folder(&format!("{}{}", rows("put", device, fabric), rows("cpu-write", "cpu", "tcp")));
        let (done, html) = page(folder.path(), "run.csv -o -");
        assert_sound(&done.stdout, &html);
        let shown = |selector: &str| all(&html, selector).iter().map(text).collect::<Vec<_>>();
        for way in way.split(", ") {
            assert!(shown("article > h3 .unreal").concat().contains(way), "{:?}", shown("h3"));
            let captions = shown("figure figcaption");
            assert!(captions.iter().any(|caption| caption.contains(way)), "{captions:?}");
        }
        assert_eq!(all(&html, "article tbody tr").len(), 6);
        assert_eq!(shown("article tbody tr.unreal strong"), [way; 3]);
    }
}

#[test]
fn stages_are_stacked() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/report/stages-by-hand.csv");
    let work = tempfile::tempdir().unwrap();
    let (done, html) = page(work.path(), &format!("{} -o -", fixture.display()));
    assert_sound(&done.stdout, &html);
    assert_eq!(all(&html, "section#stages figure").len(), 2, "shares and times");
    for (index, figure) in all(&html, "figure").iter().enumerate() {
        let boxes = |selector: &str| figure.select(&Selector::parse(selector).unwrap()).collect::<Vec<_>>();
        let colors = ["#0072b2", "#d55e00", "#008a63", "#a8508a", "#4d4d4d"];
        let parts = colors.map(|color| boxes(&format!("rect[fill='{color}']")));
        // Three stacked bars, and a legend entry.
        assert!(parts.iter().all(|parts| parts.len() == 4), "picture {index}");
        // The parts of a bar are stacked: each starts where the next one ends.
        let edge = |stage: usize, name: &str| -> f64 { parts[stage][0].value().attr(name).unwrap().parse().unwrap() };
        for stage in 1..5 {
            let gap = edge(stage - 1, "y") - (edge(stage, "y") + edge(stage, "height"));
            assert!(gap.abs() < 0.1, "picture {index}, stage {stage}: {gap}");
        }
        assert!(text(figure).contains("modelled network"));
    }
}

#[test]
fn texts_of_files_are_escaped() {
    let evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onload=\"x' &amp; https://example.org/";
    let field = format!("\"{}\"", evil.replace('"', "\"\""));
    let rows = rows("put", &field, &field).replace("proxy,put", &format!("{field},{field}"));
    let folder = folder(&format!("{rows}1,proxy,put,cpu,tcp,nbi,64,1,1,1,1,1,ok\n"));
    std::fs::write(folder.path().join("alike.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let header =
        serde_json::json!({"command": evil, "commit": evil, "hostname": evil, "date": evil, "notes": [evil, evil]});
    std::fs::write(folder.path().join("run.header.json"), header.to_string()).unwrap();
    let mut command = report(folder.path(), "run.csv alike.csv -o -");
    command.arg("--title").arg(evil);
    let done = run(command).expect(0);
    let html = Html::parse_document(&done.stdout);
    for element in all(&html, "*") {
        assert!(!matches!(element.value().name(), "script" | "img"), "{}", element.html());
        assert!(!element.value().attrs().any(|(name, _)| name.starts_with("on")), "{}", element.html());
    }
    assert_eq!(text(&all(&html, "h1")[0]), evil);
    assert!(all(&html, "dd").iter().any(|fact| text(fact) == evil));
    assert!(all(&html, "td").iter().any(|cell| text(cell) == evil));
    assert!(all(&html, "p").iter().any(|said| text(said).contains(evil)), "said of all rows");
}

#[test]
fn earlier_run_is_compared() {
    let folder = folder(&rows("put", "gpu:H200", "tcp"));
    std::fs::copy(folder.path().join("run.csv"), folder.path().join("before.csv")).unwrap();
    let (done, html) = page(folder.path(), "run.csv -o - --against before.csv");
    assert_sound(&done.stdout, &html);
    let verdicts: Vec<String> = all(&html, "#comparison tbody td:last-child").iter().map(text).collect();
    assert_eq!(verdicts, ["same within noise"; 3]);
}

#[test]
fn other_files_in_directory_are_ignored() {
    let folder = folder(&rows("put", "gpu:H200", "tcp"));
    std::fs::create_dir(folder.path().join("deeper")).unwrap();
    std::fs::write(folder.path().join("deeper/other.csv"), "a,b\n1,2\n").unwrap();
    std::fs::write(folder.path().join("notes.txt"), "x").unwrap();
    std::fs::write(folder.path().join("affinity.csv"), "schema,gpu,name\n1,0,x\n").unwrap();
    let (done, html) = page(folder.path(), ". run.csv -o -");
    assert_sound(&done.stdout, &html);
    assert!(done.stderr.contains("# left out: ./deeper/other.csv is not a CSV file of ginlab"), "{}", done.stderr);
    assert_eq!(all(&html, "article").len(), 2);
    assert!(all(&html, "section#listings").len() == 1);
}

#[test]
fn errors_print_one_line_and_keep_old_page() {
    for (args, code, part) in [
        ("none.csv -o old.html", 2, "cannot read none.csv: No such file"),
        ("other.csv -o old.html", 2, "other.csv is not a CSV file of ginlab"),
        ("cut.csv -o old.html", 2, "cut.csv: CSV error"),
        ("newer.csv -o old.html", 2, "newer.csv, line 2: schema \"7\""),
        ("bad.csv -o old.html", 2, "bad.header.json: "),
        ("empty -o old.html", 2, "no CSV file of ginlab in empty"),
        ("run.csv -o run.csv", 2, "-o run.csv is one of the input files"),
        ("run.csv --against none -o old.html", 2, "cannot read none: No such file"),
        ("run.csv --against queue.csv -o old.html", 2, "queue.csv has queue, but run.csv has proxy"),
        ("--newest run.csv -o -", 2, "--newest writes several pages"),
        ("--pages", 2, "no README.md in ."),
        ("--pages a b", 2, "--pages takes one directory, not 2"),
        ("run.csv -o missing/page.html", 1, "cannot write the page to"),
        ("run.csv -o old.html --svg old.html", 1, "cannot create directory old.html"),
    ] {
        let folder = folder(&rows("put", "gpu:H200", "tcp"));
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("old.html", "old");
        write("other.csv", "a,b\n1,2\n");
        write("cut.csv", &format!("{COLUMNS}\n1,proxy,pu"));
        write("newer.csv", &format!("{COLUMNS}\n7,proxy,put,cpu,tcp,nbi,64,1,1,1,1,1,ok\n"));
        write("queue.csv", &format!("{COLUMNS}\n1,queue,put,cpu,tcp,nbi,64,1,1,1,1,1,ok\n"));
        write("bad.csv", &format!("{COLUMNS}\n1,proxy,put,cpu,tcp,nbi,64,1,1,1,1,1,ok\n"));
        write("bad.header.json", "{");
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let before = std::fs::read_dir(folder.path()).unwrap().count();
        let done = run(report(folder.path(), args)).expect(code);
        assert!(done.complaint().contains(part), "{args}: {}", done.stderr);
        assert_eq!(std::fs::read_to_string(folder.path().join("old.html")).unwrap(), "old", "{args}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before, "{args}");
    }
}
