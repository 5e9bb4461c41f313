//! `ginlab chart` as a user runs it: a chart of a run, and every error in one line.

use std::path::Path;

use crate::common::{JobOutput, ginlab, proxy, run};

const COLUMNS: &str = "schema,experiment,case,device,fabric,mode,size_bytes,rate_mops,status";

/// Runs the command in a directory with one CSV file of these rows.
fn chart(folder: &Path, rows: &str, args: &str) -> JobOutput {
    std::fs::write(folder.join("run.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let mut command = ginlab(&format!("chart {args}"));
    command.current_dir(folder);
    run(command)
}

#[test]
fn run_is_drawn_as_chart() {
    let folder = tempfile::tempdir().unwrap();
    let mut measured = proxy("-p null -n 2 -w 1 -r 2 -b 64 -e 4K -f 4 --csv run.csv");
    measured.current_dir(folder.path());
    run(measured).expect(0);
    let draw = |output: &str| {
        let mut command = ginlab(&format!(
            "chart run.csv -x size_bytes -y rate_mops --series case,mode --range rate_mops,rate_mops -o {output}"
        ));
        command.current_dir(folder.path());
        run(command).expect(0)
    };
    let done = draw("-");
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert!(done.stdout.starts_with("<svg ") && done.stdout.ends_with("</svg>\n"), "{}", done.stdout);
    for part in ["put quiet", "put nbi", "4K", "rate (Mops)", "run.csv", "emulated device"] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
    assert_eq!(draw("curve.svg").stdout, "");
    assert_eq!(std::fs::read_to_string(folder.path().join("curve.svg")).unwrap(), done.stdout);
    assert_eq!(folder.path().read_dir().unwrap().count(), 3, "rows, header, picture");
}

#[test]
fn file_names_are_labels() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1,proxy,put,cpu,null,nbi,64,1.0,ok\n";
    std::fs::write(folder.path().join("2-two_rings.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let own = chart(folder.path(), rows, "run.csv 2-two_rings.csv -x file -y rate_mops --bars -o -").expect(0).stdout;
    assert!(own.contains(">\nrun</text>") || own.contains(">run</text>"), "{own}");
    assert!(own.contains("2 two rings"), "{own}");
}

#[test]
fn errors_print_one_line_and_keep_old_chart() {
    let rows =
        "1,proxy,put,cpu,null,nbi,64,1.0,ok\n1,proxy,put,cpu,null,nbi,128,0,ok\n1,proxy,put,cpu,null,nbi,64,,ok\n";
    for (args, part) in [
        ("none.csv -x size_bytes -y rate_mops", "cannot read none.csv: No such file"),
        (". -x size_bytes -y rate_mops", "cannot read .: Is a directory"),
        ("other.csv -x size_bytes -y rate_mops", "other.csv is not a CSV file of ginlab: it has no column schema"),
        ("cut.csv -x size_bytes -y rate_mops", "cut.csv: CSV error"),
        ("run.csv -x size -y rate_mops", "unknown column \"size\", did you mean size_bytes?; columns: file, schema"),
        ("run.csv -x size_bytes -y rate", "did you mean rate_mops?"),
        ("run.csv -x size_bytes -y rate_mops --series modus", "did you mean mode?"),
        ("run.csv -x size_bytes -y rate_mops --where modus=1", "did you mean mode?"),
        (
            "run.csv -x size_bytes -y rate_mops --where mode=quiet",
            "no rows are left to draw: none has mode=quiet; available: nbi",
        ),
        ("run.csv -x size_bytes -y rate_mops --where mode", "expected COLUMN=VALUE"),
        ("run.csv -x size_bytes -y mode", "mode is not a number in run.csv, line 2: \"nbi\""),
        ("run.csv -x size_bytes -y rate_mops --log y", "the y axis cannot be logarithmic: one value is 0"),
        ("run.csv -x mode -y rate_mops --log x", "the x axis cannot be logarithmic: mode consists of categories"),
        ("run.csv -x size_bytes -y rate_mops --bars --log y", "bars start at zero"),
        ("run.csv -x size_bytes -y rate_mops --log x,y --linear y", "--log and --linear both contain y"),
        ("run.csv -x size_bytes -y rate_mops --range rate_mops", "--range requires two columns"),
        ("run.csv -x size_bytes,mode,case -y rate_mops", "the x axis must be one or two columns"),
        ("old.svg run.csv -x size_bytes -y rate_mops", "is one of the input files"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("old.svg"), "old").unwrap();
        std::fs::write(folder.path().join("other.csv"), "a,b\n1,2\n").unwrap();
        std::fs::write(folder.path().join("cut.csv"), format!("{COLUMNS}\n1,proxy,pu")).unwrap();
        let done = chart(folder.path(), rows, &format!("{args} -o old.svg"));
        let done = done.expect(2);
        assert!(done.complaint().contains(part), "{args}: {}", done.stderr);
        assert_eq!(std::fs::read_to_string(folder.path().join("old.svg")).unwrap(), "old", "{args}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 4, "{args}");
    }
}

#[test]
fn unwritable_outputs_print_one_line() {
    let rows = "1,proxy,put,cpu,null,nbi,64,1.0,ok\n";
    for (output, part) in [("missing/x.svg", "No such file"), ("/dev/full", "No space left")] {
        let folder = tempfile::tempdir().unwrap();
        let done = chart(folder.path(), rows, &format!("run.csv -x size_bytes -y rate_mops -o {output}")).expect(1);
        let line = done.complaint();
        assert!(line.contains("cannot write the chart to") && line.contains(part), "{line}");
    }
}
