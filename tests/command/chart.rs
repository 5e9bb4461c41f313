//! `ginlab chart` as a user meets it: a picture from a run, and every refusal in one line.

use std::path::Path;

use crate::common::{Done, ginlab, proxy, run};

const COLUMNS: &str = "schema,experiment,case,device,fabric,mode,size_bytes,rate_mops,status";

/// Runs it in a folder with one CSV file of these rows.
fn chart(folder: &Path, rows: &str, args: &str) -> Done {
    std::fs::write(folder.join("run.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let mut command = ginlab(&format!("chart {args}"));
    command.current_dir(folder);
    run(command)
}

#[test]
fn a_run_becomes_a_picture() {
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
fn files_have_names_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1,proxy,put,cpu,null,nbi,64,1.0,ok\n";
    std::fs::write(folder.path().join("2-two_rings.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let draw = |names: &str| {
        chart(folder.path(), rows, &format!("run.csv 2-two_rings.csv {names} -x file -y rate_mops --bars -o -"))
    };
    let own = draw("").expect(0).stdout;
    assert!(own.contains(">\nrun</text>") || own.contains(">run</text>"), "{own}");
    assert!(own.contains("2 two rings"), "{own}");
    let given = draw("--names as-is,mended").expect(0).stdout;
    assert!(given.contains("as-is") && given.contains("mended") && !given.contains("two rings"), "{given}");
    assert!(draw("--names one").expect(2).complaint().contains("--names has 1 of 2 files"));
}

#[test]
fn refusals_are_one_line_and_leave_the_old_picture() {
    let rows =
        "1,proxy,put,cpu,null,nbi,64,1.0,ok\n1,proxy,put,cpu,null,nbi,128,0,ok\n1,proxy,put,cpu,null,nbi,64,,ok\n";
    for (args, part) in [
        ("none.csv -x size_bytes -y rate_mops", "cannot read none.csv: No such file"),
        (". -x size_bytes -y rate_mops", "cannot read .: Is a directory"),
        ("other.csv -x size_bytes -y rate_mops", "other.csv is not a CSV file of ginlab: it has no column schema"),
        ("cut.csv -x size_bytes -y rate_mops", "cut.csv: CSV error"),
        ("run.csv -x size -y rate_mops", "no column \"size\", did you mean size_bytes?; columns: file, schema"),
        ("run.csv -x size_bytes -y rate", "did you mean rate_mops?"),
        ("run.csv -x size_bytes -y rate_mops --series modus", "did you mean mode?"),
        ("run.csv -x size_bytes -y rate_mops --where modus=1", "did you mean mode?"),
        (
            "run.csv -x size_bytes -y rate_mops --where mode=quiet",
            "no rows are left to draw: none has mode=quiet; there is nbi",
        ),
        ("run.csv -x size_bytes -y rate_mops --where mode", "a condition is COLUMN=VALUE"),
        ("run.csv -x size_bytes -y mode", "mode is not a number in run.csv, line 2: \"nbi\""),
        ("run.csv -x size_bytes -y rate_mops --log y", "the y axis cannot be logarithmic: there is a value of 0"),
        ("run.csv -x mode -y rate_mops --log x", "the x axis cannot be logarithmic: mode makes categories"),
        ("run.csv -x size_bytes -y rate_mops --bars --log y", "bars stand on zero"),
        ("run.csv -x size_bytes -y rate_mops --log x,y --linear y", "--log and --linear both name y"),
        ("run.csv -x size_bytes -y rate_mops --range rate_mops", "--range is two columns"),
        ("run.csv -x size_bytes,mode,case -y rate_mops", "the x axis is one column or two"),
        ("run.csv -x size_bytes -y rate_mops --width 10", "10 pixels"),
        (
            "run.csv -x size_bytes -y rate_mops --height 200",
            "height 200 is too small for what is to be shown; at least",
        ),
        ("old.svg run.csv -x size_bytes -y rate_mops", "is one of the files to read"),
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
fn places_that_cannot_be_written_are_one_line() {
    let rows = "1,proxy,put,cpu,null,nbi,64,1.0,ok\n";
    for (output, part) in [("missing/x.svg", "No such file"), ("/dev/full", "No space left")] {
        let folder = tempfile::tempdir().unwrap();
        let done = chart(folder.path(), rows, &format!("run.csv -x size_bytes -y rate_mops -o {output}")).expect(1);
        let line = done.complaint();
        assert!(line.contains("cannot write the chart to") && line.contains(part), "{line}");
    }
}
