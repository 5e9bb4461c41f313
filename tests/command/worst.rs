//! `-p worst`: every program that takes a provider over the worst network, and specs that there are not.

use crate::common::server::{Server, verified};
use crate::common::{Job, clean, ginlab, rows, run};
use std::path::Path;
use std::process::Command;

/// Programs of ranks, small: what is looked at is every byte.
const PROGRAMS: [&str; 6] = [
    "proxy -b 64 -e 256K -f 16 -n 6 -w 1 -r 1 --rails 3 --mode quiet,nbi --proxy-threads 2 --block 33",
    "write --np 4 -b 1 -e 200000 -f 447 -n 8 -r 1 --rails 3 --strategy split,round-robin --targets one,all --window 5",
    "sendrecv -b 1 -e 100000 -f 316 -n 3 -r 1 --rails 2 --window 5",
    "all2all --np 3 -b 0 -e 100000 -f 316 -n 3 -w 1 --rails 1,2 --strategy round-robin,split",
    "shmem --path rails --cases signal-order,put-signal-bandwidth,all-to-all,barrier-all --grid 2 --block 32 -n 4 -w 1 -r 1 -b 8 -e 512 -f 64 --volume 64K",
    "collective --path rails --np 3 --mode nbi --packet 999 --launch stream -b 12 -e 12000 -f 1000 -n 2 -w 1 -r 1",
];

#[test]
fn every_program_is_right_over_it_and_says_so() {
    for (seed, program) in PROGRAMS.iter().enumerate() {
        let done = run(ginlab(&format!("{program} -d emulated -p worst:delay=40,seed={seed} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        let measured: Vec<_> = rows.into_iter().filter(|row| row.status.to_string() == "ok").collect();
        let (checked, wrong) =
            measured.iter().filter_map(|row| row.wrong).fold((0, 0), |(n, all), wrong| (n + 1, all + wrong));
        assert!(checked > 0 && wrong == 0, "{program}: {measured:#?}");
        let fabric = format!("worst:seed={seed},delay=40");
        assert!(measured.len() > 1 && measured.iter().all(|row| row.fabric == fabric), "{program}: {measured:#?}");
        assert!(done.stderr.contains("the worst network that EFA may legally be, on purpose"), "{}", done.stderr);
    }
}

/// A third of all combinations of program, signal rule, 2 to 4 ranks and thread, warp, block: each with a seed of its own.
#[test]
fn the_matrix_is_right_over_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut matrix = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/worst-matrix.sh"));
    matrix.args([Path::new(env!("CARGO_BIN_EXE_ginlab")), folder.path()]);
    clean(&mut matrix);
    matrix.envs([("SEEDS", "1"), ("EVERY", "3")]);
    // 227 runs, of 0.15 s of a core each.
    let done = Job::start(matrix).runs(6).finish();
    let failures = std::fs::read_to_string(folder.path().join("failures.txt")).unwrap();
    assert!(done.code == 0 && failures.is_empty(), "{}{}{failures}", done.stdout, done.stderr);
    let table = std::fs::read_to_string(folder.path().join("worst.csv")).unwrap();
    let ran = |words: [&str; 4]| table.lines().any(|row| words.iter().all(|word| row.contains(word)));
    for program in ["shmem", "collective", "jacobi"] {
        for rule in ["count", "own", "drain", "sequence"] {
            for np in 2..=4 {
                let (np, rule) = (format!("--np {np}"), format!("--rule {rule}"));
                let scopes: &[&str] =
                    if program == "jacobi" { &[""] } else { &["--scope thread", "--scope warp", "--scope block"] };
                for scope in scopes {
                    assert!(ran([program, &rule, &np, scope]), "{program} {rule} {np} {scope}: not run\n{table}");
                }
            }
        }
    }
    for program in ["write", "sendrecv", "all2all", "proxy"] {
        assert!(ran([program, "", "", ""]), "{program}: not run\n{table}");
    }
    assert!(table.lines().count() > 200, "{table}");
}

#[test]
fn a_server_and_its_visitors_too() {
    let mut server = Server::start("-p worst:seed=3 --peers 2 --bytes 100000 --rails 2 --visits 2");
    for args in ["-b 4097 -n 100", "-b 1 -n 7 --window 1"] {
        verified(run(server.join(&format!("{args} --csv -"))));
        assert_eq!(server.until("left")["verified"], "true");
    }
    let done = server.finish().expect(0);
    assert!(done.stdout.contains("provider=worst:seed=3 "), "{}", done.stdout);
    let done = run(ginlab("echo -p worst -e 4K -n 20 -w 1 --csv -")).expect(0);
    assert!(
        rows(&done.stdout).iter().any(|row| row.fabric == "worst:seed=1" && row.wrong == Some(0)),
        "{}",
        done.stdout
    );
}

#[test]
fn a_spec_that_there_is_not_is_one_line_with_those_that_there_are() {
    for program in
        ["proxy", "write", "sendrecv", "all2all", "shmem --path rails", "collective --path rails", "serve", "echo"]
    {
        for spec in ["worst:speed=3", "worst:delay=0", "worst:"] {
            let line = run(with_token(&format!("{program} -p {spec}"))).expect(2).complaint().to_owned();
            assert!(line.contains(spec) && line.contains("options are seed=N, delay=1..4096"), "{program}: {line}");
        }
    }
    let line = run(ginlab("write -p worst --domain lo")).expect(2).complaint().to_owned();
    assert!(line.contains("--domain: the worst network has no domains"), "{line}");
    assert!(run(ginlab("bootstrap -p worst")).expect(2).complaint().contains("no domains"));
}

fn with_token(args: &str) -> Command {
    let mut command = ginlab(args);
    command.env("GINLAB_TOKEN", "secret");
    command
}
