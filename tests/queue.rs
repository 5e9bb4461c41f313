//! `ginlab queue` on the emulated device: the stress test, and invalid options.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn queue(arguments: &[&str]) -> Output {
    let device = ["queue", "-d", "emulated", "--no-header", "-r", "2", "-t", "20"];
    Command::new(env!("CARGO_BIN_EXE_ginlab")).args(device).args(arguments).output().unwrap()
}

/// Returns the rows of the CSV as (case, status, wrong).
fn rows(arguments: &[&str]) -> Vec<(String, String, String)> {
    let output = queue(&[arguments, &["--csv", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut reader = csv::Reader::from_reader(output.stdout.as_slice());
    let columns = reader.headers().unwrap().clone();
    let at = |name: &str| columns.iter().position(|column| column == name).unwrap();
    let (case, status, wrong) = (at("case"), at("status"), at("wrong_bytes"));
    reader.records().map(Result::unwrap).map(|row| (row[case].into(), row[status].into(), row[wrong].into())).collect()
}

#[test]
fn every_queue_delivers_each_element_once() {
    for scope in ["thread", "warp"] {
        let rows = rows(&[
            "--ring-slots",
            "2,64",
            "-g",
            "2",
            "--block",
            "4",
            "-n",
            "40",
            "--pause",
            "50:20",
            "--scope",
            scope,
        ]);
        for algorithm in ["ticket", "release", "vyukov"] {
            let found: Vec<_> = rows.iter().filter(|(case, ..)| case == algorithm).collect();
            assert_eq!(found.len(), 4, "two modes, two rings: {rows:?}");
            assert!(found.iter().all(|(_, status, wrong)| status == "ok" && wrong == "0"), "{found:?}");
        }
    }
}

#[test]
fn ring_works_with_one_slot_unlike_vyukov() {
    let rows = rows(&["--ring-slots", "1", "-g", "1", "--block", "4", "-n", "20", "-m", "nbi"]);
    let status = |name: &str| rows.iter().find(|(case, ..)| case == name).unwrap().1.clone();
    assert_eq!(status("ticket"), "ok");
    assert!(status("vyukov").starts_with("skipped: one slot"), "{}", status("vyukov"));
}

#[test]
fn elements_of_every_size_pass_several_rings() {
    let sizes = "8,16,32,64,128,256,512,1024";
    let rows =
        rows(&["-p", sizes, "--ring-slots", "8", "-g", "3", "--block", "2", "-n", "20", "--rings", "2", "-m", "nbi"]);
    let checked = rows.iter().filter(|(_, status, wrong)| status == "ok" && wrong == "0").count();
    assert_eq!(checked, 8 * 3, "{rows:?}");
}

#[test]
fn lanes_over_several_rings_lose_no_elements() {
    let rows =
        rows(&["-a", "ticket,lanes", "--rings", "1,4", "--ring-slots", "4", "-g", "3", "--block", "2", "-n", "20"]);
    let found: Vec<_> = rows.iter().filter(|(case, ..)| case == "lanes").collect();
    assert_eq!(found.len(), 4, "two modes, one and four rings: {rows:?}");
    assert!(found.iter().all(|(_, status, wrong)| status == "ok" && wrong == "0"), "{found:?}");
}

#[test]
fn invalid_options_print_one_line() {
    for (arguments, words) in [
        (&["-a", "lifo"][..], "expected one of ticket, lanes, release, vyukov"),
        (&["--memory", "tape"], "expected one of pinned, managed, gdr"),
        (&["-p", "24"], "a power of two from 8 to 1024"),
        (&["-p", "64", "--slot-bytes", "32"], "too small"),
        (&["--ring-slots", "3"], "power of two"),
        (&["--rings", "65"], "from 1 to 64"),
        (&["--block", "2048"], "invalid grid"),
        (&["--pause", "soon"], "ELEMENTS:MICROSECONDS"),
        (&["--prototype", "none.so", "-a", "ticket", "-m", "nbi"], "the emulated device cannot run it"),
        (&["--prototype", "none.so", "-a", "vyukov", "-m", "nbi"], "-a ticket, -m nbi"),
        (&["--prototype", "none.so", "-a", "ticket", "-m", "nbi", "--rings", "2"], "--rings 1"),
    ] {
        let output = queue(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(words) && text.trim().lines().count() == 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}
