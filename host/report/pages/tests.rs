#![allow(clippy::unwrap_used)]

use super::*;

const ROWS: &str = "schema,experiment,case,device,fabric,size_bytes,rails,time_us_p50,status
1,proxy,put,cpu,tcp,64,1,2.5,ok
1,proxy,put,cpu,tcp,4096,1,4.0449,ok
1,proxy,floor,cpu,tcp,64,1,2,ok
1,proxy,\"a, b=c\",cpu,tcp,64,1,1455.7,ok
1,proxy,put,cpu,tcp,8388608,4,,failed: x
";

/// A repository with one page.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(page: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("data/run1")).unwrap();
        std::fs::write(root.path().join("data/run1/run.csv"), ROWS).unwrap();
        std::fs::write(root.path().join("README.md"), page).unwrap();
        Self(root)
    }

    fn page(&self) -> String {
        std::fs::read_to_string(self.0.path().join("README.md")).unwrap()
    }
}

/// Returns the text of a value marker.
fn value(selection: &str) -> String {
    let tree = Tree::new(&format!("<!-- data: data/run1 -->\nIt takes <!-- value: {selection} --><!-- end --> us."));
    let generated = match Generated::of(tree.0.path()) {
        Ok(generated) => generated,
        Err(error) => return error.to_string(),
    };
    generated.write().unwrap();
    let page = tree.page();
    page.rsplit_once("<!-- end").unwrap().0.rsplit_once("-->").unwrap().1.to_owned()
}

#[test]
fn values_are_selected_and_formatted() {
    for (selection, text) in [
        ("run.csv case=put size_bytes=64 time_us_p50", "2.50"),
        ("data/run1/run.csv case=put size_bytes=64,4K time_us_p50", "2.50 / 4.04"),
        ("run.csv case=put size_bytes=4K size_bytes,time_us_p50 round:1", "4096.0 / 4.0"),
        ("run.csv case=\"a, b=c\" time_us_p50", "1456"),
        ("run.csv status=ok time_us_p50 of:max round:0", "1456"),
        ("run.csv case=put,floor status=ok time_us_p50 of:range", "2.00 to 4.04"),
        ("run.csv case=put,floor status=ok time_us_p50 of:median times:1000", "2500"),
        ("run.csv case=put status=ok size_bytes=64 time_us_p50 over:case=floor", "1.25"),
        ("run.csv case=get time_us_p50 or:\"not run\"", "not run"),
        ("run.csv rails=4 time_us_p50 or:-", "-"),
    ] {
        assert_eq!(value(selection), text, "{selection}");
    }
}

#[test]
fn errors_name_page_line_and_marker() {
    for (selection, part) in [
        ("other.csv time_us_p50", "cannot read other.csv: "),
        ("run.csv", "at least one file (FILE.csv) and one column"),
        ("run.csv time_us", "unknown column \"time_us\", did you mean time_us_p50?"),
        ("run.csv sizes=1 time_us_p50", "unknown column \"sizes\""),
        ("run.csv case=get time_us_p50", "run.csv: no row with case=get: the rows have put, floor, a, b=c"),
        ("run.csv rails=4 time_us_p50", "time_us_p50 is empty in run.csv, line 6"),
        ("run.csv rails=1 case of:max", "not a number: \"put\""),
        ("run.csv case=put status=ok time_us_p50 over:case=get", "no row with case=get"),
        ("run.csv case=put time_us_p50 of:mean", "expected min, max, median or range"),
        ("run.csv case=put time_us_p50 by:2", "unknown option by:"),
        ("run.csv case=\"put time_us_p50", "a quotation mark is missing"),
    ] {
        let error = value(selection);
        assert!(
            error.contains(part) && error.starts_with("README.md:2: run.csv") || error.contains("other.csv"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for (page, part) in [
        ("<!-- value: data/run1/run.csv case=floor time_us_p50 -->2", "no <!-- end --> before the next marker"),
        ("a\n<!-- value: data/run1/run.csv case=floor time_us_p50 -->2<!-- end -->", "may not start a line"),
        ("<!-- rows: data/run1/run.csv -->\n<!-- end -->", "no head of the table"),
        ("<!-- rows: data/run1/run.csv\n| a\n| b | c\n-->\n<!-- end -->", "a row of 2 cells, but 1 columns"),
        (
            "<!-- rows: data/run1/run.csv time_us_p50\n| a | b := size_bytes=64\n| b | c :=\n-->\n<!-- end -->",
            "1 columns of labels",
        ),
        (
            "<!-- rows: data/run1/run.csv time_us_p50\n| a | {rails} := size_bytes=64\n-->\n<!-- end -->",
            "no condition on {rails}",
        ),
        (
            "<!-- rows: data/run1/run.csv time_us_p50\n| a | b := size_bytes=1 | c\n-->\n<!-- end -->",
            "columns of labels come first",
        ),
        ("<!-- chart: data/run1/run.csv x:size_bytes -->", "no FILE.svg to write"),
        ("<!-- chart: a.svg data/run1/run.csv z:size_bytes -->", "unknown option z:size_bytes"),
        ("<!-- chart: a.svg data/run1/run.csv names:\"a,b\" -->", "2 names for 1 files"),
        ("<!-- chart: a.svg data/run1/run.csv x:size y:rails -->", "unknown column \"size\""),
    ] {
        let tree = Tree::new(page);
        let error = Generated::of(tree.0.path()).unwrap_err().to_string();
        assert!(error.contains(part), "{page}: {error}");
    }
    assert!(Generated::of(Path::new("/nowhere")).unwrap_err().to_string().contains("no README.md in /nowhere"));
}

#[test]
fn values_of_rows_fill_values_of_columns() {
    let marker = "<!-- rows: data/run1/run.csv time_us_p50 size_bytes=64
| who | put := case=p{} | floor := case={}oor
| one := case=ut or:-
| two := case=fl or:-
-->";
    let tree = Tree::new(&format!("{marker}\n<!-- end -->"));
    Generated::of(tree.0.path()).unwrap().write().unwrap();
    assert!(tree.page().contains("| one | 2.50 | - |\n| two | - | 2 |\n"), "{}", tree.page());
}

#[test]
fn tables_and_charts_are_rewritten_and_checked() {
    let marker = "<!-- rows: data/run1/run.csv time_us_p50
| who | {size_bytes} := size_bytes=64,4K | rails := size_bytes=64 rails
| `{case}` := case=put
| card | 1.9 | 2 | 1
| `floor` := case=floor or:\"not run\"
-->";
    let table = "
| who | 64 B | 4 KiB | rails |
|---|---|---|---|
| `put` | 2.50 | 4.04 | 1 |
| card | 1.9 | 2 | 1 |
| `floor` | 2 | not run | 1 |
<!-- end -->";
    let chart = "<!-- chart: time.svg data/run1/run.csv case=put x:size_bytes y:time_us_p50 title:\"put: time\" -->";
    let tree = Tree::new(&format!("# Page\n\n{marker}\nold<!-- end -->\n\n{chart}\n"));
    let root = tree.0.path();
    let generated = Generated::of(root).unwrap();
    assert_eq!(generated.markers, 2);
    assert_eq!(generated.stale.len(), 2);
    assert_eq!(generated.stale[0], "README.md:3: data/run1/run.csv time_us_p50");
    assert!(generated.stale[1].starts_with("README.md:11: time.svg"), "{:?}", generated.stale);
    assert!(!root.join("time.svg").exists(), "a check writes nothing");
    generated.write().unwrap();
    assert_eq!(tree.page(), format!("# Page\n\n{marker}{table}\n\n{chart}\n"));
    let svg = std::fs::read_to_string(root.join("time.svg")).unwrap();
    assert!(svg.contains("put: time") && svg.contains("4K"), "{svg}");
    assert_eq!(Generated::of(root).unwrap().stale, Vec::<String>::new());
    std::fs::write(root.join("data/run1/run.csv"), ROWS.replace("2.5", "2.6")).unwrap();
    assert_eq!(Generated::of(root).unwrap().stale.len(), 2);
}

/// The generated parts of the repository's pages are current. `ginlab report --pages` updates them.
#[test]
fn pages_of_repository_are_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let generated = Generated::of(&root).unwrap();
    assert_eq!(generated.stale, Vec::<String>::new(), "ginlab report --pages rewrites these");
    assert!(generated.markers > 0);
}
