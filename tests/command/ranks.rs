//! Ranks started by mpirun, by the variables of the tcp bootstrap, and on separate hosts. All produce rows of one
//! schema.

use std::process::Command;

use crate::common::lab::Lab;
use crate::common::{self, JobOutput, ProcessGroup, all_verified, both, free_port, ginlab, mpirun, rows, run};
use ginlab::report::Row;

const SHORT: &str = "proxy -d emulated -n 2 -w 1 -r 1";

/// Returns the command of one rank of a tcp job of two.
fn tcp_rank(rank: usize, port: u16, token: &str, args: &str) -> Command {
    common::tcp_rank(rank, port, token, &format!("{SHORT} {args}"))
}

/// Checks the run and returns the row of each case and mode.
#[track_caller]
fn checked(done: &JobOutput, bootstrap: &str) -> Vec<Row> {
    assert!(done.stderr.contains(&format!("# note: 2 ranks by the {bootstrap} bootstrap")), "{}", done.stderr);
    let rows = rows(&done.stdout);
    all_verified(&rows);
    let cases: Vec<_> = rows.iter().map(|row| (row.case.as_str(), row.mode.as_deref().unwrap())).collect();
    assert_eq!(cases, [("cpu-write", "nbi"), ("put", "quiet"), ("put", "nbi")]);
    assert!(rows.iter().all(|row| row.ranks == 2 && row.rails == Some(2)));
    rows
}

#[test]
fn two_processes_connect_by_tcp_variables() {
    let port = free_port();
    let rank = |rank| tcp_rank(rank, port, "secret", "-b 4097 -e 4097 -p tcp --rails 2 --csv -");
    let (first, second) = both(rank(0), rank(1));
    let (first, second) = (first.expect(0), second.expect(0));
    checked(&first, "tcp");
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""), "rank 0 alone speaks");
}

#[test]
fn wrong_token_is_rejected() {
    let port = free_port();
    let stranger = ProcessGroup::start(tcp_rank(1, port, "guess", "-p tcp -t 3"));
    let first = ProcessGroup::start(tcp_rank(0, port, "secret", "-p tcp -t 3"));
    let stranger = stranger.finish();
    let line = stranger.complaint();
    assert!(line.contains("token"), "{line}");
    assert_ne!(stranger.code, 0);
    let first = first.finish().expect(124);
    // The rank prints the refusal immediately, and then the reason for its exit.
    let lines = first.complaints();
    assert!(lines.len() == 2 && lines[0].starts_with("ginlab: refused a connection from 127.0.0.1"), "{lines:?}");
    assert!(lines[1].contains("waiting for rank 1") && lines[1].contains("a different job token"), "{lines:?}");
}

#[test]
fn different_options_are_reported() {
    for (first, second, difference) in [
        ("-p tcp -e 4K", "-p tcp -e 16K", "sizes is \"4096\" on rank 0 but \"4096,16384\" on rank 1"),
        ("-p tcp", "-p null", "provider is \"tcp\" on rank 0 but \"null\" on rank 1"),
        ("-p tcp --rails 1", "-p tcp --rails 1,2", "rails is \"1\" on rank 0 but \"1,2\" on rank 1"),
        ("-p tcp", "-p tcp --no-check", "payload is "),
    ] {
        let port = free_port();
        let (first, second) = both(tcp_rank(0, port, "secret", first), tcp_rank(1, port, "secret", second));
        for done in [first, second] {
            let done = done.expect(2);
            let line = done.complaint();
            assert!(line.starts_with(&format!("ginlab: ranks differ: {difference}")), "{line}");
        }
    }
}

#[test]
fn incomplete_launcher_variables_are_reported() {
    let with = |variables: &[(&str, &str)], args: &str| {
        let mut command = ginlab(&format!("{SHORT} {args}"));
        command.envs(variables.iter().copied());
        run(command).expect(2).complaint().to_owned()
    };
    let line = with(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("GINLAB_TOKEN", "t")], "");
    assert!(line.contains("MASTER_ADDR is not set"), "{line}");
    let line = with(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")], "");
    assert!(line.contains("set GINLAB_TOKEN"), "{line}");
    let line = with(&[("RANK", "two"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")], "");
    assert!(line.contains("RANK=\"two\""), "{line}");
    // Incomplete variables of a launcher, and invalid hosts, are reported immediately, not after the timeout.
    for (name, other) in
        [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
    {
        let line = with(&[(name, "1"), (other, "")], "");
        assert!(line.contains(&format!("{name} is set but {other} is not")), "{line}");
    }
    for (master, part) in [
        ("127.0.0.1:29500", "it has a port, which belongs in MASTER_PORT"),
        ("[::1]:29500", "it has a port"),
        ("tcp://127.0.0.1", "it has a scheme"),
        ("node0,node1", "it has a character that is not allowed in names"),
        ("256.0.0.1", "it is not an IPv4 address"),
    ] {
        let job = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", master), ("GINLAB_TOKEN", "t")];
        let line = with(&job, "-p tcp -t 600");
        assert!(line.contains(&format!("MASTER_ADDR={master:?} is not valid: {part}")), "{line}");
    }
    // A rank of several that mpirun started, which treats itself as the only one.
    let line = with(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")], "--bootstrap local");
    assert!(line.contains("mpirun started 2 ranks, but the local bootstrap reports 1"), "{line}");
    if !cfg!(feature = "mpi") {
        let line = with(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")], "");
        assert!(line.contains("built without MPI"), "{line}");
    }
}

#[test]
fn two_ranks_run_under_mpirun() {
    let Some(first) = mpirun(2, &format!("{SHORT} -b 4097 -e 4097 -p tcp --rails 2 --csv -")) else { return };
    checked(&run(first).expect(0), "mpi");
    let mpirun = |args: &str| run(mpirun(2, &format!("{SHORT} {args}")).unwrap());
    let done = mpirun("-p tcp -b 0");
    assert!(done.code == 2 && done.stderr.contains("--begin: must be at least 1 byte"), "{done:?}");
    let done = mpirun("-p tcp --np 4");
    assert!(done.stderr.contains("4 ranks were requested, but the mpi bootstrap has 2"), "{done:?}");
}

#[test]
fn two_hosts_run_over_four_rails() {
    let Some(lab) = Lab::up("--rate none") else { return };
    let rank = |rank: usize, args: &str| lab.ginlab(rank, &format!("{SHORT} {args}"));
    let args = "-b 16383 -e 16383 -p tcp --rails 1,4 --strategy split,round-robin --csv -";
    let (first, second) = both(rank(0, args), rank(1, args));
    let (first, second) = (first.expect(0), second.expect(0));
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""));
    assert!(first.stderr.contains("# note: 2 ranks by the tcp bootstrap"), "{}", first.stderr);
    let rails = first.stderr.lines().find(|line| line.starts_with("# rails: ")).unwrap();
    for rail in ["rail0", "rail1", "rail2", "rail3"] {
        assert!(rails.contains(rail), "four domains are four rails: {rails}");
    }
    assert!(!first.stderr.contains("endpoints share"), "{}", first.stderr);
    let rows = rows(&first.stdout);
    all_verified(&rows);
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in rows.iter().filter(|row| row.rails == Some(4) && row.strategy.as_deref() == Some("split")) {
        assert!(row.own("rail_bytes").list().unwrap().iter().all(|bytes| *bytes > 0), "{row:?}");
    }

    // A domain that only one side has is reported on both.
    let (first, second) = both(rank(0, "-p tcp --domain lo"), rank(1, "-p tcp --domain rail9"));
    assert!(second.stderr.contains("no rail9; available: "), "{}", second.stderr);
    assert_ne!((first.code, second.code), (0, 0));
    assert_eq!(first.complaints().len(), 1, "{}", first.stderr);
}

/// Rank 0 has a connection to each rank.
#[test]
fn open_file_limit_is_named() {
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 40 && exec \"$0\" bootstrap --bootstrap tcp -p tcp", env!("CARGO_BIN_EXE_ginlab")]);
    common::clean(&mut command);
    let port = free_port().to_string();
    command.envs([("RANK", "0"), ("WORLD_SIZE", "64"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
    command.env("GINLAB_TOKEN", "secret");
    let done = run(command).expect(2);
    let line = done.complaint();
    assert!(line.contains("connections of 64 ranks: ") && line.contains("raise it (ulimit -n 128)"), "{line}");
}

/// `deploy/ranks.sh`, which starts one rank per GPU of a node if there is no launcher.
fn ranks_script(ranks: &str, command: &[&str]) -> Command {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/ranks.sh"));
    script.args(command);
    common::clean(&mut script);
    script.env("RANKS_PER_NODE", ranks).env("GINLAB_TOKEN", "secret").env("MASTER_PORT", free_port().to_string());
    script.env("NODE", "0").env("NODES", "1").env("MASTER_ADDR", "127.0.0.1");
    script
}

#[test]
fn script_starts_one_rank_per_gpu() {
    let program = env!("CARGO_BIN_EXE_ginlab");
    let line = "-b 4097 -e 4097 -p tcp --rails 2 --per-node --csv -";
    let words: Vec<&str> = [program].into_iter().chain(SHORT.split(' ')).chain(line.split(' ')).collect();
    let done = run(ranks_script("4", &words)).expect(0);
    let rows = rows(&done.stdout);
    assert!(done.stderr.contains("# note: 4 ranks by the tcp bootstrap"), "{}", done.stderr);
    // For each of three cases, there is one row of all pairs, one of the node and one of the job. Here, they cover the
    // same ranks.
    let count = |case: &str| rows.iter().filter(|row| row.case == case).count();
    assert_eq!((rows.len(), count("node"), count("job")), (9, 3, 3));
    for row in rows.iter().filter(|row| ["node", "job"].contains(&row.case.as_str())) {
        assert_eq!(row.own("senders").number(), Some(2.0));
        let is_whole =
            |other: &&Row| Some(other.case.as_str()) == row.own("summarized_case").text() && other.mode == row.mode;
        assert_eq!(row.bandwidth_gbytes_s, rows.iter().find(is_whole).unwrap().bandwidth_gbytes_s, "{row:?}");
        let number = |name: &str| row.own(name).number().unwrap();
        assert!(number("gpu_gbits_s_min") <= number("gpu_gbits_s_max"));
        assert!(number("rail_gbits_s_min") > 0.0 && number("rail_gbits_s_min") <= number("rail_gbits_s_max"));
    }
    let failed = run(ranks_script("2", &["false"])).expect(1);
    assert!(failed.complaint().contains("ended with exit code 1"), "{}", failed.stderr);
    let mut unknown = ranks_script("2", &["true"]);
    unknown.env_remove("NODES");
    assert!(run(unknown).expect(2).complaint().contains("nodes is not known"));
}
