//! examples/ring_shift.rs in its three shapes: PEs of one host, hosts with one PE each, hosts with several. Network
//! namespaces emulate hosts.

use std::process::Command;

use crate::common::lab::{Lab, script};
use crate::common::{JobOutput, ProcessGroup, clean};
use example::shift;

/// Compiled into this test, because cargo builds the example itself only if no test is named.
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../../examples/ring_shift.rs"]
mod example;

const SHAPE: &str = "RING_SHIFT_OF_A_TEST";

/// Body of a PE that the following tests start. It is not itself a test. The number of PEs, the path and the provider
/// determine the shape.
#[test]
#[ignore = "started by the other tests"]
fn ring_shift_runs_with_one_pe() {
    let Ok(shape) = std::env::var(SHAPE) else { return };
    let words: Vec<&str> = shape.split_whitespace().collect();
    let pes = words[0].parse().unwrap();
    println!(
        "\n{}",
        shift(Some(pes).filter(|pes| *pes > 0), words[1].parse().unwrap(), words.get(2).copied()).unwrap()
    );
}

fn shaped(mut command: Command, shape: &str) -> Command {
    clean(&mut command);
    command.env(SHAPE, shape);
    command
}

const THIS: [&str; 4] = ["--exact", "ring_shift::ring_shift_runs_with_one_pe", "--ignored", "--nocapture"];

/// Returns the lines that start with "PE " of all processes.
fn lines(done: &[JobOutput]) -> Vec<String> {
    done.iter().flat_map(|done| done.stdout.lines()).filter(|line| line.starts_with("PE ")).map(str::to_owned).collect()
}

#[test]
fn ring_shift_runs_on_one_host() {
    for (shape, by) in
        [("8 auto", "put by memory"), ("8 rails tcp", "put by tcp"), ("3 rails model:p5", "put by model:p5")]
    {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(THIS);
        let done = ProcessGroup::start(shaped(command, shape)).finish().expect(0);
        let said = lines(&[done]);
        assert!(said.iter().any(|line| line.starts_with("PE 0 of ")), "{said:?}");
        assert!(said.iter().all(|line| line.contains(by) && line.contains("emulated")), "{shape}: {said:?}");
    }
}

/// Runs `each` PEs on each of four hosts.
fn on_four_hosts(each: usize, path: &str) -> Option<Vec<String>> {
    let lab = Lab::up("--nodes 4 --rails 1 --rate none")?;
    let program = std::env::current_exe().unwrap();
    let rank = |rank: usize| {
        let exec = format!("exec --name {} {} -- {} {}", lab.name, rank / each, program.display(), THIS.join(" "));
        let mut command = shaped(script(&exec), &format!("0 {path} tcp"));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", (4 * each).to_string());
        ProcessGroup::start(command)
    };
    let ranks: Vec<ProcessGroup> = (0..4 * each).map(rank).collect();
    Some(lines(&ranks.into_iter().map(|rank| rank.finish().expect(0)).collect::<Vec<_>>()))
}

#[test]
fn ring_shift_runs_on_four_single_pe_hosts() {
    let Some(said) = on_four_hosts(1, "auto") else { return };
    assert_eq!(said.len(), 4);
    assert!(said.iter().all(|line| line.contains(" of 4, ") && line.contains("; put by tcp")), "{said:?}");
}

#[test]
fn ring_shift_runs_on_four_dual_pe_hosts() {
    // The paths are mixed: PEs put to the other PE of the host through memory, and to the next host over the rail.
    let Some(said) = on_four_hosts(2, "auto") else { return };
    assert_eq!(said.len(), 8);
    assert_eq!(said.iter().filter(|line| line.ends_with("put by memory")).count(), 4, "{said:?}");
    assert_eq!(said.iter().filter(|line| line.contains("; put by tcp")).count(), 4, "{said:?}");
}
