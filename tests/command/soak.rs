//! `ginlab soak`: one command line for many seeds, with all ranks in one process.

use crate::common::{ginlab, rows, run};

#[test]
fn every_seed_runs_and_failures_are_named() {
    let line = "shmem -d emulated --np 3 --path nvlink --cases barrier-all -w 1 -r 1 --grid 1 --block 3{seed} -n 4";
    let found = rows(&run(ginlab(&format!("soak --seeds 3 --csv - -- {line}"))).expect(0).stdout);
    assert_eq!((found.len(), found[0].case.as_str(), found[0].ranks), (1, "shmem", 3));
    assert_eq!(found[0].own("failed_seeds").number(), Some(0.0));
    assert_eq!(found[0].own("seeds").number().unwrap(), 3.0);
    let line = "shmem -d emulated --np 2 --path rails --cases barrier-all -w 1 -r 1 --grid 1 --block 1 -n 2";
    let found =
        rows(&run(ginlab(&format!("soak --seeds 3 --csv - -- {line} -p worst:seed={{seed}}"))).expect(0).stdout);
    assert_eq!(found[0].fabric, "worst:seed=1..3");

    // Of 8 verified puts, the one with ticket 5 lacks a byte, as seed 0 specifies; no put has ticket 15.
    let line = "proxy -d emulated --cases put -n 1 -w 0 -r 1 --window 4 --mode nbi -b 64 -e 64 -p null --fault corrupt={seed}5";
    let ended = run(ginlab(&format!("soak --first 0 --seeds 2 --csv - -- {line}"))).expect(1);
    let told = "ginlab: seed 0: verification failed: 1 wrong bytes in nbi of 64 B (null): ginlab proxy -d emulated --cases put -n 1";
    assert!(ended.stderr.contains(told) && ended.stderr.contains("--fault corrupt=05\n"), "{}", ended.stderr);
    assert_eq!(rows(&ended.stdout)[0].own("first_failed_seed").number(), Some(0.0));
    assert!(ended.stderr.contains("1 of 2 seeds failed in proxy"), "{}", ended.stderr);
    // No seed has a row.
    let ended =
        run(ginlab(&format!("soak --first 5 --seeds 1 --csv - -- {}", line.replace("{seed}5", "{seed}")))).expect(1);
    assert!(
        ended.stderr.contains("1 of 1 seeds failed in proxy\n") && !ended.stderr.contains("()"),
        "{}",
        ended.stderr
    );
}

#[test]
fn invalid_commands_print_one_line() {
    for (line, why) in [
        ("nothing {seed}", "COMMAND: unknown experiment \"nothing\": expected one of proxy,"),
        ("soak {seed}", "COMMAND: unknown experiment \"soak\""),
        ("shmem -d emulated", "COMMAND: no word contains {seed}"),
        ("write -p soft-efa:p5 -n {seed}", "soak does not support soft-efa"),
        ("shmem --np x{seed}", "--np"),
    ] {
        let ended = run(ginlab(&format!("soak -- {line}"))).expect(2);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{line}: {}", ended.stderr);
    }
}

#[test]
fn junit_lists_every_seed_of_experiments_and_programs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("soak.xml");
    let written = |line: &str, code: i32| {
        let ended = run(ginlab(&format!("soak --first 0 --seeds 2 --no-header --junit {} -- {line}", file.display())));
        let stderr = ended.expect(code).stderr;
        (std::fs::read_to_string(&file).unwrap(), stderr)
    };
    let line = "proxy -d emulated --cases put -n 1 -w 0 -r 1 --window 4 --mode nbi -b 64 -e 64 -p null --fault corrupt={seed}5";
    let (text, stderr) = written(line, 1);
    assert!(text.contains("tests=\"2\" failures=\"1\""), "{text}");
    assert!(text.contains("<testcase classname=\"ginlab proxy\" name=\"seed 0\""), "{text}");
    // The failing line is the one on stderr.
    let failing = stderr.lines().find_map(|line| line.strip_prefix("ginlab: seed 0: ")).unwrap();
    assert!(text.contains(&format!(">seed 0: {failing}</failure>")), "{text} {failing}");
    // The exit code of `test 0 = SEED`, a program.
    let (text, stderr) = written("/usr/bin/test 0 = {seed}", 1);
    assert!(
        stderr.contains("ginlab: seed 1: exit status: 1: no message on its standard error: /usr/bin/test 0 = 1\n"),
        "{stderr}"
    );
    assert!(text.contains("failures=\"1\"") && text.contains("classname=\"/usr/bin/test\" name=\"seed 0\""), "{text}");
    let ended = run(ginlab("soak --junit /proc/none/soak.xml -- write -n {seed}")).expect(2);
    assert!(ended.stderr.contains("--junit: cannot write /proc/none/soak.xml: "), "{}", ended.stderr);
}
