//! `ginlab soak`: one command line for many seeds, with all ranks in one process.

use crate::common::{ginlab, rows, run};

#[test]
fn every_seed_is_run_and_what_fails_is_named() {
    let line = "shmem -d emulated --np 3 --path nvlink --cases barrier-all -w 1 -r 1 --grid 1 --block 3{seed} -n 4";
    let found = rows(&run(ginlab(&format!("soak --seeds 3 --csv - -- {line}"))).expect(0).stdout);
    assert_eq!((found.len(), found[0].case.as_str(), found[0].ranks, found[0].wrong), (1, "shmem", 3, Some(0)));
    assert_eq!(found[0].own("seeds").number().unwrap(), 3.0);

    // Of 9 puts the one with ticket 5 lacks a byte, which is what seed 0 asks for; nobody has ticket 15.
    let line = "proxy -d emulated -n 1 -w 0 -r 1 --window 4 --mode nbi -b 64 -e 64 -p null --fault corrupt={seed}5";
    let ended = run(ginlab(&format!("soak --first 0 --seeds 2 --csv - -- {line}"))).expect(1);
    let told =
        "ginlab: seed 0: verification failed: 1 wrong bytes in nbi of 64 B (null): ginlab proxy -d emulated -n 1";
    assert!(ended.stderr.contains(told) && ended.stderr.contains("--fault corrupt=05\n"), "{}", ended.stderr);
    assert_eq!(rows(&ended.stdout)[0].own("first_failed_seed").number(), Some(0.0));
    assert!(ended.stderr.contains("verification failed: 1 wrong seeds"), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_soaked_is_one_line() {
    for (line, why) in [
        ("nothing {seed}", "COMMAND: \"nothing\" is no experiment; there are proxy,"),
        ("soak {seed}", "COMMAND: \"soak\" is no experiment"),
        ("shmem -d emulated", "COMMAND: no word has {seed}"),
        ("write -p soft-efa:p5 -n {seed}", "cards in software are loaded before a process starts"),
        ("shmem --np x{seed}", "--np"),
    ] {
        let ended = run(ginlab(&format!("soak -- {line}"))).expect(2);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{line}: {}", ended.stderr);
    }
}
