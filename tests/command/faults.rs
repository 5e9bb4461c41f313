//! Tests faults in the middle of a run: proxies that exit, ranks that are killed, Ctrl-C, and a reader that closes the
//! pipe. Every run must end within its bound, print the reason, and leave no process and no partial row.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    JobOutput, OutputStream, ProcessGroup, beside_each_other, free_port, ginlab, proxy, rows, rows_of, run,
    until_listening, wait_for,
};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

/// Options of a run that lasts longer than any of these tests waits for its fault. The fault must occur in the middle
/// of the run.
const LONG: &str = "-p tcp -b 64 -e 1M -f 2 -n 100 --rails 1,2,4 --csv run.csv --json run.json";

fn long_job(folder: &Path, stdout_lines: usize) -> ProcessGroup {
    let mut command = proxy(LONG);
    command.current_dir(folder);
    ProcessGroup::start_reading(command, stdout_lines)
}

/// Returns a job that has printed its first row and continues for a long time.
fn mid_run(folder: &Path) -> ProcessGroup {
    let mut job = long_job(folder, usize::MAX);
    job.until(OutputStream::Stdout, "nbi");
    job
}

/// Checks the output of an interrupted run: complete rows in both files, and a document that is marked incomplete.
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

/// Returns a command with puts in one long kernel, in which the fault occurs: the CPU's own writes before it are not
/// commands of the ring. Few threads unless specified: each put has a barrier of the block, and with 256 threads
/// barriers take most of the time of the emulated device.
fn faulty(args: &str) -> Command {
    let block = if args.contains("--block") { "" } else { "--block 33" };
    proxy(&format!("-b 64 -e 64 -n 20000 -r 1 --mode nbi {block} {args}"))
}

/// Checks that the fault ended the kernel with this reason, and that the message includes the state of the ring.
#[track_caller]
fn ended_early(done: &JobOutput, reason: &str) {
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
fn vanished_proxy_times_out() {
    // Runs the jobs concurrently, because they wait for their deadlines.
    std::thread::scope(|scope| {
        for args in ["-p null", "-p tcp", "-p null --ring-slots 2"] {
            scope.spawn(move || {
                let done = run(faulty(&format!("{args} -t 1 --fault proxy-vanish=5000"))).expect(124);
                ended_early(&done, "deadline passed on the device");
                assert!(rows_stay_whole(&done));
            });
        }
    });
}

/// The user must receive the proxy's diagnosis, not only the kernel's timeout.
#[test]
fn silent_rails_are_reported_with_queues() {
    let all =
        ["-p null --mode quiet", "-p null --mode nbi", "-p tcp --rails 2 --mode quiet", "-p model:p5 --mode quiet"];
    beside_each_other(2, &all, |args| {
        let command = proxy(&format!("-b 64 -e 64 -n 20000 -r 1 --block 33 {args} -t 1 --fault rails-silent=5000"));
        let done = run(command).expect(124);
        ended_early(&done, "fabric error: no progress for ");
        let line = done.complaint();
        for part in
            [" commands in flight above watermark ", " transfers posted but not complete", "; rails: ", " posted "]
        {
            assert!(line.contains(part), "{args}: {part:?} is not in: {line}");
        }
        assert!(rows_stay_whole(&done));
    });
}

#[test]
fn stopped_proxy_is_reported() {
    let all = ["-p null", "-p tcp", "-p null --ring-slots 2", "-p null --grid 4 --block 3 --scope thread"];
    beside_each_other(2, &all, |args| {
        let done = run(faulty(&format!("{args} --fault proxy-stop=5000"))).expect(1);
        let line = done.complaint();
        for part in ["the kernel ended early (64 B, ", "proxy stopped", " tickets given, "] {
            assert!(line.contains(part), "{args}: {line}");
        }
        assert!(rows_stay_whole(&done));
    });
}

/// Rails that are not notified would wait for their deadline, which is longer than a test may take.
#[test]
fn killed_target_is_named_on_silent_rails() {
    let mut job = ProcessGroup::start(proxy(
        "-p tcp --rails 1 --mode quiet -b 64 -e 64 -n 9 -w 200 -r 1 -t 300 --fault rails-silent=1",
    ));
    job.until(OutputStream::Stderr, "time_us is");
    // The warm-up is the first grid.
    wait_for(|| threads(job.pid()).iter().any(|name| name.starts_with("grid ")), "a grid");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: lost connection to rank 1 (host ") && line.contains("signal: 9"), "{line}");
}

/// Returns the names of a process's threads.
fn threads(pid: Pid) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

/// Returns whether the table has rows in addition to its heading.
fn rows_stay_whole(done: &JobOutput) -> bool {
    done.stdout.lines().count() != 1
}

#[test]
fn killed_target_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = mid_run(folder.path());
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: lost connection to rank 1 (host ") && line.contains("signal: 9"), "{line}");
    intact(folder.path());
}

#[test]
fn children_exit_after_parent_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let job = mid_run(folder.path());
    job.signal(Signal::SIGKILL);
    // `finish` waits for every process that holds stderr.
    let done = job.finish().expect(128 + 9);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert!(!rows_of(&folder.path().join("run.csv")).is_empty());
}

#[test]
fn interrupted_run_keeps_its_rows() {
    for (to_all, signal) in [(false, Signal::SIGINT), (true, Signal::SIGINT), (false, Signal::SIGTERM)] {
        let folder = tempfile::tempdir().unwrap();
        let job = mid_run(folder.path());
        if to_all {
            // Sends the signal to the group, as a terminal does.
            killpg(job.pid(), signal).unwrap();
        } else {
            job.signal(signal);
        }
        let done = job.finish().expect(130);
        assert_eq!(done.complaint(), "ginlab: interrupted; the rows so far are complete", "{signal} {to_all}");
        intact(folder.path());
    }
}

/// Kernels that make progress check no request to stop, and a vanished proxy ends no wait. Each of these would take
/// longer than a test may.
#[test]
fn interrupt_ends_running_kernels() {
    let two = "-d emulated --np 2 -t 100 --no-header";
    let all = [
        format!("proxy -p null -b 64 -e 64 -n 20000 -r 1 --mode nbi --block 33 --fault proxy-vanish=500 {two}"),
        format!(
            "proxy -p efa-verbs/soft:fast --rails 1 --mode quiet --cases direct -b 64 -e 64 -n 1000000 -r 9 --block 32 {two}"
        ),
        format!("shmem --cases put-latency -b 8 -e 8 --block 64 -n 1000000 -w 0 -r 9 {two}"),
        format!(
            "shmem --path direct -p efa-verbs/soft:fast --cases signal-ping-pong -n 1000000 -w 1 -r 9 --grid 1 --block 32 {two}"
        ),
        format!("collective --cases gin-all-reduce --launch stream -b 400 -e 400 -n 100000 -w 1 -r 9 {two}"),
        "direct -d emulated -m nbi --grid 1 --block 32 -n 16777216 --repeats 3 --no-header".to_owned(),
        "queue -d emulated -a ticket -m nbi --grid 1 --block 32 -n 100000000 -r 9 --no-header".to_owned(),
    ];
    beside_each_other(2, &all, |args| {
        let job = ProcessGroup::start(ginlab(args));
        let runs = |pid| threads(pid).iter().any(|name| name.starts_with("grid ") || name == "stream\n");
        wait_for(|| runs(job.pid()), "a kernel");
        job.signal(Signal::SIGINT);
        let done = job.finish().expect(130);
        assert_eq!(done.complaint(), "ginlab: interrupted; the rows so far are complete", "{args}");
    });
}

#[test]
fn interrupt_ends_wait_between_ranks() {
    let mut command = ginlab("proxy -d emulated -p tcp -t 20");
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("GINLAB_TOKEN", "t");
    let port = free_port();
    command.env("GINLAB_PORT", port.to_string());
    let began = Instant::now();
    let job = ProcessGroup::start(command);
    until_listening(port);
    job.signal(Signal::SIGINT);
    job.finish().expect(130);
    assert!(began.elapsed() < Duration::from_secs(15), "it waited for rank 1");
}

/// A pipe without a reader cannot be opened.
#[test]
fn interrupt_ends_wait_for_reader_of_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("rows.csv");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut command = proxy("-p null -b 64 -e 64 --csv rows.csv --json run.json");
    command.current_dir(folder.path());
    let job = ProcessGroup::start(command);
    // The temporary file of the document, which is opened before.
    let is_there = || folder.path().read_dir().unwrap().any(|file| file.unwrap().file_name() != "rows.csv");
    wait_for(is_there, "the document");
    job.signal(Signal::SIGINT);
    assert_eq!(job.finish().expect(130).complaint(), "ginlab: interrupted; the rows so far are complete");

    let mut command = proxy("-p null -b 64 -e 64 -n 3 -w 1 -r 1 --csv rows.csv");
    command.current_dir(folder.path());
    let job = ProcessGroup::start(command);
    let read = std::fs::read_to_string(&pipe).unwrap();
    job.finish().expect(0);
    assert!(rows(&read).len() > 1, "{read}");
}

#[test]
fn closed_stdout_ends_run_quietly() {
    let folder = tempfile::tempdir().unwrap();
    // Heading and two rows, as `head -n 4` reads them.
    let done = long_job(folder.path(), 4).finish().expect(141);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert_eq!(done.stdout.lines().count(), 4);
    intact(folder.path());

    let mut command = proxy("-p tcp -b 64 -e 1M -f 2 -n 100 --csv -");
    command.current_dir(folder.path());
    let done = ProcessGroup::start_reading(command, 3).finish().expect(141);
    assert_eq!(done.complaints(), Vec::<&str>::new());
    assert_eq!(rows(&done.stdout).len(), 2);
}

/// A command without bytes cannot lose one, which a note reports once per job.
#[test]
fn corrupt_without_bytes_prints_note() {
    let line =
        "shmem -d emulated --np 2 --path rails -p worst --cases signal-ping-pong -n 20 -w 1 -r 1 --grid 1 --csv -";
    let done = run(ginlab(&format!("{line} --fault corrupt=3"))).expect(0);
    let note =
        "ginlab: note: fault corrupt=3: command 3 of PE 0, 1 has no bytes (only a signal): nothing was changed\n";
    assert_eq!(done.stderr.matches(note).count(), 1, "{}", done.stderr);
    assert_eq!(done.stderr.matches("nothing was changed").count(), 1, "{}", done.stderr);
    // No rank has this many commands.
    let done = run(ginlab(&format!("{line} --fault corrupt=1000000"))).expect(0);
    assert!(!done.stderr.contains("nothing was changed"), "{}", done.stderr);
}

#[test]
fn help_and_page_list_all_faults() {
    let page = include_str!("../../docs/faults.md");
    for program in ["proxy", "shmem", "collective", "jacobi", "moe"] {
        let help = run(ginlab(&format!("{program} --help"))).expect(0).stdout;
        let refused = run(ginlab(&format!("{program} -d emulated --fault fire=3"))).expect(2).complaint().to_owned();
        for fault in ["proxy-vanish=N", "proxy-stop=N", "rails-silent=N", "corrupt=N"] {
            assert!(help.contains(fault) && refused.contains(fault), "{program} {fault}: {help}{refused}");
            assert!(page.contains(&format!("| `{fault}` |")), "docs/faults.md: {fault}");
        }
    }
}
