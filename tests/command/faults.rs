//! What is broken on purpose, mid-run: proxies that go, ranks that are killed, Ctrl-C, a reader that has seen enough.
//! Every case ends within its bound, says why, leaves no process and no half row.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    Done, Job, Stream, beside_each_other, free_port, ginlab, proxy, rows, rows_of, run, until_listening, wait_for,
};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Longer than any of these tests wait for its fault: the signal must come mid-run.
const LONG: &str = "-p tcp -b 64 -e 1M -f 2 -n 100 --rails 1,2,4 --csv run.csv --json run.json";

fn long_job(folder: &Path, stdout_lines: usize) -> Job {
    let mut command = proxy(LONG);
    command.current_dir(folder);
    Job::start_reading(command, stdout_lines)
}

/// A job that has printed its first row, and will go on for long.
fn mid_run(folder: &Path) -> Job {
    let mut job = long_job(folder, usize::MAX);
    job.until(Stream::Stdout, "nbi");
    job
}

/// What an interrupted run leaves: whole rows, of both kinds, and a document that says that it is not complete.
#[track_caller]
fn intact(folder: &Path) {
    let rows = rows_of(&folder.join("run.csv"));
    assert!(!rows.is_empty() && rows.iter().all(|row| row.status.to_string() == "ok"), "{rows:?}");
    let text = std::fs::read_to_string(folder.join("run.csv")).unwrap();
    assert!(text.ends_with('\n'));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    assert_eq!(document["complete"], false);
    assert_eq!(document["rows"].as_array().unwrap().len(), rows.len());
}

/// Puts in one long kernel, in which the fault comes: the CPU's own writes before it are not the ring's commands. Few threads, where nothing else is
/// asked for: each put has all of a block meet, and turns of 256 threads are what the emulated device takes its time for.
fn faulty(args: &str) -> Command {
    let block = if args.contains("--block") { "" } else { "--block 33" };
    proxy(&format!("-b 64 -e 64 -n 20000 -r 1 --mode nbi {block} {args}"))
}

/// The fault ended the kernel, with this reason, and the message says where the ring stood.
#[track_caller]
fn ended_early(done: &Done, reason: &str) {
    let line = done.complaint();
    for part in [
        "the kernel ended early (64 B, 1 x ",
        reason,
        "ring 0: ",
        " tickets given, ",
        " taken by the proxy, watermark ",
    ] {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

#[test]
fn a_proxy_that_vanishes_is_a_deadline() {
    // Beside each other: they wait for their deadlines.
    std::thread::scope(|scope| {
        for args in ["-p null", "-p tcp", "-p null --ring-slots 2"] {
            scope.spawn(move || {
                let done = run(faulty(&format!("{args} -t 1 --fault proxy-vanish=100"))).expect(124);
                ended_early(&done, "deadline passed on the device");
                assert!(rows_stay_whole(&done));
            });
        }
    });
}

/// The proxy's diagnosis reaches the user, not only that the kernel's time is up.
#[test]
fn rails_that_go_silent_are_a_stall_with_rails_and_queues() {
    let all =
        ["-p null --mode quiet", "-p null --mode nbi", "-p tcp --rails 2 --mode quiet", "-p model:p5 --mode quiet"];
    beside_each_other(2, &all, |args| {
        let command = proxy(&format!("-b 64 -e 64 -n 20000 -r 1 --block 33 {args} -t 1 --fault rails-silent=100"));
        let done = run(command).expect(124);
        ended_early(&done, "fabric error: no progress for ");
        let line = done.complaint();
        for part in
            [" commands in flight above watermark ", " transfers posted and not complete", "; rails: ", " posted "]
        {
            assert!(line.contains(part), "{args}: {part:?} is not in: {line}");
        }
        assert!(rows_stay_whole(&done));
    });
}

#[test]
fn a_proxy_that_stops_says_so() {
    let all = ["-p null", "-p tcp", "-p null --ring-slots 2", "-p null --grid 4 --block 3 --scope thread"];
    beside_each_other(2, &all, |args| {
        let done = run(faulty(&format!("{args} --fault proxy-stop=100"))).expect(1);
        let line = done.complaint();
        for part in ["the kernel ended early (64 B, ", "proxy stopped", " tickets given, "] {
            assert!(line.contains(part), "{args}: {line}");
        }
        assert!(rows_stay_whole(&done));
    });
}

/// Rails that hear nothing of it would wait for their deadline, which is longer than a test may take.
#[test]
fn a_target_that_is_killed_is_named_where_the_rails_hear_nothing() {
    let mut job =
        Job::start(proxy("-p tcp --rails 1 --mode quiet -b 64 -e 64 -n 9 -w 200 -r 1 -t 300 --fault rails-silent=1"));
    job.until(Stream::Stderr, "time_us is");
    // The warm-up is the first grid.
    wait_for(|| threads(job.pid()).iter().any(|name| name.starts_with("grid ")), "a grid");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: rank 1 (host ") && line.contains("signal: 9"), "{line}");
}

/// The names of a process's threads.
fn threads(pid: Pid) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

/// Only the heading of a table may stand before the first row.
fn rows_stay_whole(done: &Done) -> bool {
    done.stdout.lines().count() != 1
}

#[test]
fn a_target_that_is_killed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = mid_run(folder.path());
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: rank 1 (host ") && line.contains("signal: 9"), "{line}");
    intact(folder.path());
}

#[test]
fn children_go_with_a_killed_parent() {
    let folder = tempfile::tempdir().unwrap();
    let job = mid_run(folder.path());
    job.signal(Signal::SIGKILL);
    // It waits for every process that holds stderr.
    let done = job.finish().expect(128 + 9);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert!(!rows_of(&folder.path().join("run.csv")).is_empty());
}

#[test]
fn an_interrupted_run_keeps_its_rows() {
    for (to_all, signal) in [(false, Signal::SIGINT), (true, Signal::SIGINT), (false, Signal::SIGTERM)] {
        let folder = tempfile::tempdir().unwrap();
        let job = mid_run(folder.path());
        if to_all {
            // As a terminal does.
            killpg(job.pid(), signal).unwrap();
        } else {
            job.signal(signal);
        }
        let done = job.finish().expect(130);
        assert_eq!(done.complaint(), "ginlab: interrupted; the rows so far are complete", "{signal} {to_all}");
        intact(folder.path());
    }
}

#[test]
fn an_interrupt_while_ranks_wait_for_each_other() {
    let mut command = ginlab("proxy -d emulated -p tcp -t 20");
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("GINLAB_TOKEN", "t");
    let port = free_port();
    command.env("GINLAB_PORT", port.to_string());
    let began = Instant::now();
    let job = Job::start(command);
    until_listening(port);
    job.signal(Signal::SIGINT);
    job.finish().expect(130);
    assert!(began.elapsed() < Duration::from_secs(15), "it waited for rank 1");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run_quietly() {
    let folder = tempfile::tempdir().unwrap();
    // Heading and two rows, as `head -n 4` takes them.
    let done = long_job(folder.path(), 4).finish().expect(141);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert_eq!(done.stdout.lines().count(), 4);
    intact(folder.path());

    let mut command = proxy("-p tcp -b 64 -e 1M -f 2 -n 100 --csv -");
    command.current_dir(folder.path());
    let done = Job::start_reading(command, 3).finish().expect(141);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert_eq!(rows(&done.stdout).len(), 2);
}
