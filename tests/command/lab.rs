//! `scripts/rails-lab.sh`: nodes with shaped rails between them on one machine.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::common::lab::{Lab, SCRIPT, command, missing, namespaces, script, unique};
use crate::common::{ProcessGroup, all_verified, rows, run, skip};

#[test]
fn two_nodes_run_over_four_rails() {
    let Some(lab) = Lab::up("--rate 2gbit --mtu 9000") else { return };
    for node in 0..2 {
        for rail in 0..4 {
            let (namespace, link) = (lab.namespace(node), format!("rail{rail}"));
            let shaped = command(&format!("tc -n {namespace} qdisc show dev {link}")).unwrap();
            assert!(shaped.contains("tbf") && shaped.contains(" rate 2Gbit "), "{shaped}");
            let shown = command(&format!("ip -n {namespace} -4 address show dev {link}")).unwrap();
            assert!(
                shown.contains(" mtu 9000 ") && shown.contains(&format!("10.99.{rail}.{}/24", node + 1)),
                "{shown}"
            );
        }
    }
    let status = lab.script("status", "").expect(0).stdout;
    let words: Vec<Vec<_>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words.len(), 1 + 2 * 4);
    assert_eq!(words[8], ["1", "rail3", "10.99.3.2/24", "2Gbit", "9000", "up"]);

    // Each node is a rank, without further options.
    let args = "proxy -d emulated -n 2 -w 1 -r 1 -b 65537 -e 65537 -p tcp --rails 4 --strategy split --csv -";
    let (first, second) = (ProcessGroup::start(lab.ginlab(0, args)), ProcessGroup::start(lab.ginlab(1, args)));
    let (first, second) = (first.finish().expect(0), second.finish().expect(0));
    assert_eq!(second.stdout, "");
    assert!(first.stderr.contains("# note: 2 ranks by the tcp bootstrap"), "{}", first.stderr);
    let rows = rows(&first.stdout);
    all_verified(&rows);
    for row in &rows {
        let bytes = row.own("rail_bytes").list().unwrap();
        assert!(bytes.len() == 4 && bytes.iter().all(|bytes| *bytes > 0), "{row:?}");
    }

    let line = lab.script("up", "").expect(1);
    assert!(line.complaint().contains("already exists"), "{}", line.stderr);
    assert_eq!(lab.left().len(), 2, "a refused up takes nothing down");
    lab.script("down", "").expect(0);
    assert_eq!(lab.left(), Vec::<String>::new());
    assert!(lab.script("down", "").expect(0).complaint().contains("no such lab"));
}

/// A run that is killed in its own mount namespace (scripts/hide-slow-libraries.sh creates one) leaves names without
/// namespaces.
#[test]
fn stale_names_do_not_block_lab() {
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let dead = lab.namespace(0);
    command(&format!("umount /run/netns/{dead}")).unwrap();
    assert_eq!(lab.left().len(), 2);
    // The other namespace exists.
    assert!(lab.script("up", "").expect(1).complaint().contains("already exists: ginlab"));
    assert_eq!(lab.left(), [lab.namespace(1)]);
    command(&format!("umount /run/netns/{}", lab.namespace(1))).unwrap();
    lab.script("up", "--rails 1 --rate none").expect(0);
    assert_eq!(lab.script("status", "").expect(0).stdout.lines().count(), 3);
}

/// Returns the bytes that a node has sent over its first rail.
fn sent(lab: &Lab, node: usize) -> u64 {
    let shown = command(&format!("ip -n {} -s link show dev rail0", lab.namespace(node))).unwrap();
    let numbers = shown.lines().skip_while(|line| !line.trim_start().starts_with("TX:")).nth(1);
    numbers.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

#[test]
fn interleaved_ranks_measure_across_nodes() {
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let sizes = "-d emulated -p tcp --rails 1 -b 64K -e 64K -n 50 -r 2 --window 4 --no-check";
    for what in ["write --targets one", "sendrecv --mode window", "proxy --mode nbi"] {
        let before = sent(&lab, 0);
        // Ranks 0 and 2 run on the first node, and ranks 1 and 3 on the second, as with mpirun --map-by node.
        let rank = |rank: usize| {
            let mut command = lab.ginlab(rank % 2, &format!("{what} {sizes}"));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4").env("LOCAL_RANK", (rank / 2).to_string());
            ProcessGroup::start(command)
        };
        let ranks: Vec<ProcessGroup> = (0..4).map(rank).collect();
        let done: Vec<_> = ranks.into_iter().map(|rank| rank.finish().expect(0)).collect();
        assert!(!done[0].stderr.contains("within one"), "{}", done[0].stderr);
        // The two pairs write two repeats of fifty writes, all of them over the rail.
        let sent = sent(&lab, 0) - before;
        assert!(sent >= 2 * 2 * 50 * 65536, "{what}: {sent} bytes left the first node");
    }
}

#[test]
fn three_nodes_connect_by_bridges() {
    let Some(lab) = Lab::up("--nodes 3 --rails 2 --rate 200mbit") else { return };
    let beside = Lab::up("--rails 1 --rate none").unwrap();
    assert_eq!((lab.left().len(), beside.left().len()), (4, 2));
    let status = lab.script("status", "").expect(0).stdout;
    assert_eq!(status.lines().filter(|line| line.contains(" 200Mbit ")).count(), 6, "{status}");
    assert!(beside.script("status", "").expect(0).stdout.contains(" none "));
    let shaped = command(&format!("tc -n ginlab-lab-{}-bridge qdisc show", lab.name)).unwrap();
    assert_eq!(shaped.matches(" rate 200Mbit ").count(), 6, "what several send to one is shaped too: {shaped}");

    // The first and the last node, over the bridge.
    let args = "proxy -d emulated -n 2 -w 1 -r 1 -b 4097 -e 4097 -p tcp --rails 2 --csv -";
    let rank = |node: usize, rank: &str| {
        let mut command = lab.ginlab(node, args);
        command.env("RANK", rank).env("WORLD_SIZE", "2");
        ProcessGroup::start(command)
    };
    let (first, last) = (rank(0, "0"), rank(2, "1"));
    all_verified(&rows(&first.finish().expect(0).stdout));
    last.finish().expect(0);

    let line = lab.script("exec", "3 true").expect(1);
    assert!(line.complaint().contains("has nodes 0 to 2, not 3"), "{}", line.stderr);
    assert_eq!(lab.script("exec", "2 false").code, 1, "the command's own exit code");
    lab.script("down", "").expect(0);
    assert_eq!((lab.left().len(), beside.left().len()), (0, 2), "another lab stays");
}

#[test]
fn failed_setup_removes_created_nodes() {
    if let Some(why) = missing() {
        return skip(&why);
    }
    // A tc that succeeds twice and then fails.
    let folder = tempfile::tempdir().unwrap();
    let tc = folder.path().join("tc");
    let path = std::env::var("PATH").unwrap();
    let text = format!(
        "#!/bin/sh\necho >> {0}/calls\nif [ $(wc -l < {0}/calls) -gt 2 ]; then echo 'no more' >&2; exit 2; fi\n\
         PATH={path} exec tc \"$@\"\n",
        folder.path().display()
    );
    std::fs::write(&tc, text).unwrap();
    std::fs::set_permissions(&tc, std::fs::Permissions::from_mode(0o755)).unwrap();
    for nodes in [2, 3] {
        // Removes the calls recorded in the previous iteration.
        let _ = std::fs::remove_file(folder.path().join("calls"));
        let name = unique();
        let mut up = script(&format!("up --name {name} --nodes {nodes}"));
        up.env("PATH", format!("{}:{path}", folder.path().display()));
        let done = run(up).expect(1);
        let line = done.complaint();
        assert!(line.starts_with("rails-lab.sh: tc ") && line.ends_with(": no more"), "{line}");
        assert_eq!(namespaces(&name), Vec::<String>::new());
    }
}

#[test]
fn invalid_usage_prints_one_line() {
    for (args, part) in [
        ("", "no command: expected up"),
        ("around", "unknown command \"around\""),
        ("up --nodes 1", "invalid --nodes \"1\": expected a number from 2 to 64"),
        ("up --nodes 08", "invalid --nodes \"08\""),
        ("up --nodes 99999999999999999999", "invalid --nodes "),
        ("up --rails 65", "invalid --rails \"65\": expected a number from 1 to 64"),
        ("up --rate fast", "invalid --rate \"fast\": expected a rate like 1gbit"),
        ("up --rate 0gbit", "invalid --rate "),
        ("up --mtu 100", "invalid --mtu \"100\""),
        ("up --mtu", "--mtu needs a value"),
        ("up here", "up takes options only"),
        ("up --name a/b", "invalid --name \"a/b\""),
        ("up --color", "unknown option \"--color\""),
        ("down --nodes 3", "--nodes is an option of up"),
        ("exec", "exec: no node"),
        ("exec one true", "invalid node \"one\""),
        ("exec 0 --", "exec: no command"),
    ] {
        let done = run(script(args)).expect(2);
        let line = done.complaint();
        assert!(line.starts_with("rails-lab.sh: ") && line.contains(part), "{args}: {line}");
        assert_eq!(done.stdout, "");
    }
    assert!(run(script("--help")).expect(0).stdout.contains("Examples:"));
}

#[test]
fn missing_tools_print_one_line() {
    // The path consists of a directory without ip and tc; `env` must find bash there.
    let folder = tempfile::tempdir().unwrap();
    for tool in ["bash", "env"] {
        let real = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool)).into_iter().find(|path| path.exists());
        std::os::unix::fs::symlink(real.unwrap(), folder.path().join(tool)).unwrap();
    }
    let mut up = script("up");
    up.env("PATH", folder.path());
    assert!(run(up).expect(1).complaint().contains("no ip here"));
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        assert!(run(script("up")).expect(1).complaint().contains("need root"));
        return;
    }
    // Root becomes the unprivileged user, which may not be permitted to read this directory.
    let mut up = std::process::Command::new("setpriv");
    up.args(["--reuid", "65534", SCRIPT, "up"]);
    if command(&format!("setpriv --reuid 65534 test -x {SCRIPT}")).is_err() {
        return skip("no setpriv, or nobody may not read this folder: that root is needed is not shown");
    }
    assert!(run(up).expect(1).complaint().contains("need root"));
}
