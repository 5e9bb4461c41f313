//! The command as a user runs it: invalid input, verified puts in every shape, the three outputs, help and versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{JobOutput, all_verified, clean, ginlab, proxy, rows, rows_of, run, skip};
use ginlab::report::Row;

/// A short run: one size, few puts.
const SHORT: &str = "-n 2 -w 1 -r 1";

/// Runs the command with a CSV file and a JSON file. Returns its outcome and the names of the files created.
fn run_with_files(mut command: Command) -> (JobOutput, BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    command.args(["--csv", "run.csv", "--json", "run.json"]).current_dir(folder.path());
    let done = run(command);
    (done, names(folder.path()))
}

fn names(folder: &Path) -> BTreeSet<String> {
    folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Checks that the options are rejected with code 2 and one line that contains `part`, and that no file remains.
#[track_caller]
fn refused(args: &str, part: &str) {
    refused_by(proxy(args), part);
}

#[track_caller]
fn refused_by(command: Command, part: &str) {
    let (done, files) = run_with_files(command);
    let done = done.expect(2);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: ") && line.contains(part), "{part}: {line}");
    assert_eq!(done.stdout, "", "{part}");
    assert!(files.is_empty(), "{part}: {files:?}");
}

#[test]
fn invalid_options_are_rejected() {
    // One example per place that validates: clap, a parser of ginlab, a check of the options together, and a check of
    // all ranks. The full list is in experiments/proxy/args/tests.rs.
    for (args, part) in [
        ("-n many", "--iterations: invalid digit"),
        ("-b 1X", "--begin: invalid size \"1X\": unknown unit"),
        ("--strategy stripe", "round-robin"),
        ("-b 8K -e 4K", "the end is smaller than the beginning"),
        ("--provider null --domain lo", "no domains"),
        ("--bootstrap carrier", "--bootstrap: invalid value \"carrier\": expected one of local, mpi, tcp"),
    ] {
        refused(args, part);
    }
}

#[test]
fn unavailable_hardware_is_rejected() {
    for (args, part) in [
        ("--provider infinity", "tcp"),
        ("--provider tcp --domain eth99", "no eth99; available: lo"),
        ("--provider tcp --np 1", "--np: 1: must be a positive even number"),
        ("--provider tcp --np 3", "--np: 3: must be a positive even number"),
        ("--np 0", "ranks"),
        ("--np 258", "1 to 256"),
        ("--provider null --block 2000", "--grid, --block: invalid grid 1 x 2000 on emulated"),
        ("--provider tcp --block 2000", "invalid grid 1 x 2000 on emulated"),
        ("--provider tcp -b 1T -e 1T --memory-limit 4T", "bytes of host memory"),
        ("--provider null -b 1T -e 1T --memory-limit 4T", "bytes of host memory"),
    ] {
        refused(args, part);
    }
    if Path::new("/dev/nvidiactl").exists() {
        skip("this machine may have a GPU: --device gpu is not refused");
    } else {
        refused_by(ginlab("proxy --device gpu"), "no CUDA driver");
    }
}

#[test]
fn rows_beyond_memory_limit_are_skipped() {
    let done = run(proxy(&format!("{SHORT} -p null -b 4K -e 1T -f 268435456 --csv -"))).expect(0);
    let rows = rows(&done.stdout);
    let (measured, skipped): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.size_bytes == Some(4096));
    all_verified(&measured);
    assert_eq!((measured.len(), skipped.len()), (4, 2));
    for row in skipped {
        let status = row.status.to_string();
        assert!(status.starts_with("skipped: 1 producers with 1 TiB each exceed --memory-limit 2 GiB"), "{status}");
        assert_eq!((row.time_us_p50, row.wrong_bytes), (None, None));
    }
}

#[test]
fn invalid_outputs_are_rejected_before_run() {
    let folder = tempfile::tempdir().unwrap();
    let outputs = |args: &str| {
        let provider = if args.contains("tcp") { "" } else { "-p null" };
        let mut command = proxy(&format!("{SHORT} -b 64 -e 64 {provider} {args}"));
        command.current_dir(folder.path());
        let done = run(command);
        (done.complaint().to_owned(), done)
    };
    let (line, done) = outputs("--csv - --json -");
    assert!(line.contains("cannot both go to stdout"), "{line}");
    assert_eq!((done.code, done.stdout.as_str()), (2, ""));
    let (line, done) = outputs("--csv run --json ./run");
    assert!(line.contains("each its own file"), "{line}");
    assert_eq!((done.code, done.stdout.as_str()), (2, ""));
    for args in [
        "--csv missing/run.csv",
        "--json missing/run.json",
        "-p tcp --csv missing/run.csv",
        "--json run.json --csv missing/run.csv",
        "--csv run.csv --json missing/run.json",
    ] {
        let (line, done) = outputs(args);
        assert!(line.contains("missing/run.") && line.contains("No such file"), "{line}");
        assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{args}");
    }
    assert_eq!(names(folder.path()), BTreeSet::new());
}

#[test]
fn full_disk_prints_one_line() {
    for args in ["-p null --csv /dev/full", "-p null --json /dev/full", "-p tcp --csv /dev/full"] {
        let done = run(proxy(&format!("{SHORT} -b 64 -e 64 {args}"))).expect(1);
        let line = done.complaint();
        assert!(line.contains("/dev/full") && line.contains("No space left"), "{args}: {line}");
    }
    // Only the shell can redirect stdout itself; the message must still be printed.
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" > /dev/full", env!("CARGO_BIN_EXE_ginlab")]);
    command.args(format!("proxy -d emulated -p null -b 64 -e 64 {SHORT}").split_whitespace());
    clean(&mut command);
    let done = run(command).expect(1);
    assert!(done.complaint().contains("cannot write the table to stdout"), "{}", done.stderr);
}

#[test]
fn unknown_options_exit_with_code_2() {
    for args in ["proxy --colour never", "proxy --scopes warp", "proxy -n", "teleport"] {
        let done = run(ginlab(args)).expect(2);
        assert!(done.stderr.starts_with("error: ") && done.stdout.is_empty(), "{args}: {}", done.stderr);
    }
    assert!(run(ginlab("")).expect(2).stderr.contains("Usage:"));
}

#[test]
fn odd_sizes_arrive_over_any_rails() {
    for (bytes, rails) in [(1, "1,2,3,4"), (3, "1,2,3,4"), (4095, "1,2,3,4"), (4097, "1,2,3,4")] {
        let done = run(proxy(&format!(
            "{SHORT} -p tcp -b {bytes} -e {bytes} --rails {rails} --strategy single,split,round-robin,auto --window 3 --csv -"
        )))
        .expect(0);
        let rows = rows(&done.stdout);
        all_verified(&rows);
        let shapes: BTreeSet<_> = rows.iter().map(|row| (row.rails, row.strategy.clone(), row.mode.clone())).collect();
        // cpu-write also has mode nbi.
        assert_eq!((rows.len(), shapes.len()), (4 * 4 * 3, 4 * 4 * 2), "{bytes}");
        assert!(rows.iter().all(|row| row.size_bytes == Some(bytes) && row.fabric.starts_with("tcp")));
        for row in &rows {
            let rail_bytes = row.own("rail_bytes").list().unwrap();
            assert_eq!(rail_bytes.len(), row.rails.unwrap() as usize);
            assert_eq!(rail_bytes.iter().sum::<u64>(), 2 * bytes, "{row:?}");
            let used = rail_bytes.iter().filter(|bytes| **bytes > 0).count();
            let two = row.rails > Some(1) && row.strategy.as_deref() != Some("single");
            assert_eq!(used, 1 + usize::from(two), "two puts take turns, or are cut at a page: {row:?}");
        }
    }
}

#[test]
fn every_grid_shape_is_verified() {
    for (args, expected) in [
        ("-p tcp --mode quiet,nbi,quiet-every=3", 4),
        ("-p tcp --scope thread --grid 2 --block 3", 3),
        ("-p tcp --grid 2 --block 3 --proxy-threads 2", 3),
        ("-p tcp --window 1 --ring-slots 2 --scope thread --block 5", 3),
        ("-p tcp --no-fill --completion transmit", 3),
        ("-p tcp --rails 1 --window 1 --bare --no-check", 4),
        ("-p tcp --np 4 --rails 2", 3),
        ("-p null --grid 1,2 --block 3 --mode quiet,nbi,quiet-every=3 --proxy-threads 2", 9),
        ("-p null --np 3 --scope thread --ring-slots 2 --no-fill --block 33", 3),
    ] {
        let done = run(proxy(&format!("-n 7 -w 1 -r 1 -b 4097 -e 4097 {args} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        if args.contains("--no-check") {
            assert!(rows.iter().all(|row| row.wrong_bytes.is_none() && row.time_us_p50.is_some()), "{rows:?}");
        } else {
            all_verified(&rows);
        }
        assert_eq!(rows.len(), expected, "{args}");
        assert_eq!(done.complaints(), Vec::<&str>::new(), "{args}");
    }
}

#[test]
fn shared_memory_rails_are_verified() {
    let done = run(proxy(&format!("{SHORT} -p shm -b 1 -e 4097 -f 4096 --rails 1,4 --csv -")));
    if done.code == 2 {
        return skip(&format!("the provider shm is not to be had: {}", done.stderr));
    }
    let rows = rows(&done.expect(0).stdout);
    all_verified(&rows);
    assert!(rows.len() == 2 * 2 * 3 && rows.iter().all(|row| row.fabric == "shm"));
}

#[test]
fn verification_detects_single_missing_byte() {
    // The first pass fills the window of 4 once. The second pass fills it twice, and the payloads of the second lap
    // remain. If the timed puts fill the window exactly once, only the first pass runs.
    let args = "--cases put -w 0 -r 1 --window 4 --mode nbi --rails 2 -b 64 -e 64 --csv run.csv --json -";
    for (provider, timed, ticket) in [("tcp", 1, 2), ("tcp", 9, 4 + 4), ("tcp", 4, 3), ("null", 1, 7)] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = proxy(&format!("{args} -n {timed} -p {provider} --fault corrupt={ticket}"));
        command.current_dir(folder.path());
        let done = run(command).expect(1);
        assert!(done.complaints()[0].contains("verification failed: 1 wrong bytes in nbi of 64 B"), "{}", done.stderr);
        let rows = rows_of(&folder.path().join("run.csv"));
        let status = |row: &Row| (row.wrong_bytes, row.status.to_string());
        let found: Vec<_> = rows.iter().filter(|row| row.case == "put").map(status).collect();
        assert_eq!(found, [(Some(1), "failed: wrong bytes".into())]);
        let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(document["complete"], false);
    }
}

#[test]
fn keep_going_after_wrong_data_still_fails() {
    let args = "--cases put -n 1 -w 0 -r 1 --window 4 --mode nbi -b 64 -e 128 -f 2 -p null --fault corrupt=5 --keep-going --csv -";
    let done = run(proxy(args));
    let rows = rows(&done.stdout);
    let wrong: Vec<_> = rows.iter().filter(|row| row.case == "put").map(|row| row.wrong_bytes).collect();
    assert_eq!(wrong, [Some(1), Some(0)]);
    assert!(done.expect(1).complaint().contains("verification failed: 1 wrong bytes in nbi of 64 B"));
}

#[test]
fn table_csv_and_json_agree() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = proxy("-p null -b 64 -e 256 -n 3 -r 4 --grid 1,2 --csv run.csv --json run.json --color auto");
    command.current_dir(folder.path());
    let done = run(command).expect(0);
    let text = std::fs::read_to_string(folder.path().join("run.csv")).unwrap();
    let rows = rows(&text);
    all_verified(&rows);
    let columns: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    assert!(columns.len() > Row::COMMON.len() && columns.contains(&"rail_bytes"), "{columns:?}");
    assert_eq!(rows.len(), 2 * (4 + 3), "ping-pong where the grid is one block");

    let document: serde_json::Value =
        serde_json::from_reader(std::fs::File::open(folder.path().join("run.json")).unwrap()).unwrap();
    assert_eq!((&document["schema"], &document["complete"]), (&2.into(), &true.into()));
    let entries = document["rows"].as_array().unwrap();
    assert_eq!(entries.len(), rows.len());
    for (entry, row) in entries.iter().zip(&rows) {
        let keys: Vec<_> = columns.iter().filter(|column| entry.get(**column).is_none()).collect();
        assert!(keys.is_empty(), "{keys:?} are not in {entry}");
        assert_eq!(entry["samples_us"].as_array().unwrap().len(), 4);
        let mut entry = entry.clone();
        entry.as_object_mut().unwrap().remove("samples_us");
        assert_eq!(serde_json::from_value::<Row>(entry).unwrap(), *row);
    }
    let beside: serde_json::Value =
        serde_json::from_reader(std::fs::File::open(folder.path().join("run.header.json")).unwrap()).unwrap();
    assert_eq!(beside, document["header"]);
    for key in ["ginlab", "command", "date", "rustc", "libfabric", "provider", "rails", "memory", "affinity"] {
        assert!(!beside[key].is_null(), "{key}: {beside}");
    }
    assert_eq!(beside["kernel_rustc"].is_null(), !cfg!(feature = "ptx"), "{beside}");

    // stdout contains only the table, stderr only the header.
    assert_eq!(done.stdout.lines().count(), 2 + rows.len(), "{}", done.stdout);
    assert!(done.stdout.lines().skip(2).zip(&rows).all(|(line, row)| line.starts_with(&row.case)), "{}", done.stdout);
    assert!(done.complaints().is_empty() && done.stderr.contains("# provider: null"), "{}", done.stderr);
    assert!(!done.stdout.contains('\x1b') && !done.stderr.contains('\x1b'), "escape codes in a pipe");
    assert_eq!(names(folder.path()).len(), 3);
}

#[test]
fn dash_writes_only_data_to_stdout() {
    let done = run(proxy(&format!("{SHORT} -p null -b 64 -e 64 --csv - --no-header"))).expect(0);
    all_verified(&rows(&done.stdout));
    assert_eq!(done.stderr, "");
    let done = run(proxy(&format!("{SHORT} -p null -b 64 -e 64 --json -"))).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["header"]["provider"], "null");
    assert!(done.stderr.starts_with("# ginlab: "), "{}", done.stderr);
}

#[test]
fn color_requires_option_or_terminal() {
    let table = |args: &str| run(proxy(&format!("{SHORT} -p null -b 64 -e 64 --no-check {args}"))).expect(0).stdout;
    assert!(table("--color always").contains('\x1b'));
    assert!(!table("--color never").contains('\x1b'));
    // On a terminal, which `script` emulates, NO_COLOR decides.
    let mut on_terminal = Command::new("script");
    let line = format!("{} proxy -d emulated -p null {SHORT} -b 64 -e 64 --no-header", env!("CARGO_BIN_EXE_ginlab"));
    on_terminal.args(["-qec", &line, "/dev/null"]);
    // Tested with a command that does nothing, because a container may have the program but no pseudo-terminals (no
    // devpts).
    let mut plays = Command::new("script");
    plays.args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !plays.status().is_ok_and(|status| status.success()) {
        return skip("no script(1) that can play a terminal here");
    }
    clean(&mut on_terminal);
    on_terminal.env("TERM", "xterm");
    // The progress bar moves the cursor; only the table is bold.
    let bold = |command| run(command).expect(0).stdout.contains("\x1b[1m");
    let mut plain = Command::new("script");
    plain.args(["-qec", &line, "/dev/null"]);
    clean(&mut plain);
    plain.env("TERM", "xterm").env("NO_COLOR", "1");
    assert!(bold(on_terminal));
    assert!(!bold(plain));
}

/// Returns every subcommand, and those of `model`, from the help.
fn subcommands() -> Vec<String> {
    let listed = |of: &str| -> Vec<String> {
        let help = run(ginlab(&format!("{of} --help"))).expect(0).stdout;
        // `ginlab` lists its subcommands by group before its options, `ginlab model` under one heading.
        let (list, _) = if of.is_empty() {
            help.split_once("Options:").unwrap()
        } else {
            let (_, list) = help.split_once("Commands:\n").unwrap_or_default();
            list.split_once("\n\n").unwrap_or_default()
        };
        let names = list.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
        names
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let all = listed("");
    assert!(all.len() >= 17, "{all:?}");
    all.iter()
        .flat_map(|one| [vec![one.clone()], listed(one).iter().map(|two| format!("{one} {two}")).collect()].concat())
        .collect()
}

#[test]
fn every_subcommand_accepts_color() {
    for command in subcommands() {
        // The help is printed only if the preceding options are valid.
        run(ginlab(&format!("{command} --color never --help"))).expect(0);
        let done = run(ginlab(&format!("{command} --color sometimes --help"))).expect(2);
        assert!(done.stderr.contains("--color") && done.stderr.contains("always"), "{command}: {}", done.stderr);
        let help = run(ginlab(&format!("{command} --help"))).expect(0).stdout;
        assert_eq!(help.matches("--color <WHEN>").count(), 1, "{command}");
    }
    run(ginlab("--color never efa --from tests/fixtures/p5")).expect(0);
}

#[test]
fn listings_are_coloured_on_request() {
    for command in [
        "efa --from tests/fixtures/p5",
        "affinity --from tests/fixtures/p5",
        "bootstrap -p tcp --np 2",
        "model figures",
    ] {
        let table = |args: &str| run(ginlab(&format!("{command} {args}"))).expect(0).stdout;
        assert!(table("--color always").starts_with("\x1b[1m"), "{command}");
        assert!(!table("--color never").contains('\x1b'), "{command}");
        // stdout is not a terminal here.
        assert!(!table("").contains('\x1b'), "{command}");
        // Data is never coloured.
        assert!(!table("--color always --csv -").contains('\x1b'), "{command}");
    }
}

#[test]
fn header_records_environment_without_secrets() {
    let mut command = proxy(&format!("{SHORT} -p tcp -b 64 -e 64 --json -"));
    command.env("FI_TCP_PORT_LOW_RANGE", "20000").env("FI_TCP_PORT_HIGH_RANGE", "30000");
    command.env("NCCL_ALGO", "Ring").env("GINLAB_TOKEN", "hush-hush").env("NCCL_API_KEY", "hush-hush");
    let done = run(command).expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let listed: Vec<_> =
        document["header"]["environment"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    for expected in ["FI_TCP_PORT_LOW_RANGE=20000", "FI_TCP_PORT_HIGH_RANGE=30000", "NCCL_ALGO=Ring"] {
        assert!(listed.contains(&expected), "{listed:?}");
    }
    assert!(done.stderr.contains("FI_TCP_PORT_LOW_RANGE=20000"), "{}", done.stderr);
    assert!(!done.stdout.contains("hush") && !done.stderr.contains("hush"), "{}", done.stderr);
    // Two ranks of one host form a pair that crosses no network, which the header notes.
    assert!(document["header"]["notes"].to_string().contains("no pair crosses a network"), "{document}");
    // The document has two numbers per device and counter, or null if there is no NIC.
    let counters = &document["header"]["nic_counters"];
    for device in counters.as_object().into_iter().flat_map(|devices| devices.values()) {
        assert!(device.as_object().unwrap().values().all(|change| change.as_array().unwrap().len() == 2), "{counters}");
    }
    assert!(counters.is_object() || counters.is_null(), "{counters}");
}

#[test]
fn help_and_versions_are_printed() {
    let help = run(ginlab("proxy --help")).expect(0).stdout;
    assert!(help.contains("Examples:") && help.contains("--fault"), "{help}");
    assert!(run(ginlab("--help")).expect(0).stdout.contains("Exit codes:"));
    let version = run(ginlab("--version")).expect(0).stdout;
    assert!(version.starts_with(concat!("ginlab ", env!("CARGO_PKG_VERSION"), " (commit ")), "{version}");
    let value = |name: &str| {
        let line = version.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {version}")).trim().to_owned()
    };
    assert!(value("libfabric").starts_with(|c: char| c.is_ascii_digit()), "{version}");
    assert!(value("rustc").starts_with("1."), "{version}");
    assert_eq!(value("MPI") == "not found", !cfg!(feature = "mpi"), "{version}");
    assert!(!version.contains('\0'), "{version:?}");
}

#[test]
fn completions_are_valid_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(ginlab(&format!("completions {shell}"))).expect(0).stdout;
        assert!(script.contains("--proxy-threads") || script.contains("proxy-threads"), "{shell}");
        // The text is passed as a file, because it exceeds the maximum length of an argument.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, &script).unwrap();
        let Ok(status) = Command::new(shell).arg("-n").arg(file.path()).status() else {
            skip(&format!("no {shell} to parse its completions"));
            continue;
        };
        assert!(status.success(), "{shell}");
    }
    run(ginlab("completions csh")).expect(2);
}
