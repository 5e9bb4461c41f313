//! Nodes connected by rails on this machine, by `scripts/rails-lab.sh`.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{JobOutput, clean, run};

pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/rails-lab.sh");

/// A lab of this test, taken down when dropped.
pub struct Lab {
    pub name: String,
}

/// Returns the script with these arguments (separated by spaces), in an environment without launchers.
pub fn script(args: &str) -> Command {
    let mut command = Command::new(SCRIPT);
    command.args(args.split_whitespace());
    clean(&mut command);
    command
}

/// Returns a name that no other test uses.
pub fn unique() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the reason why this machine cannot run a lab, if any. Creates and removes each kind of object that a lab
/// needs.
pub fn missing() -> Option<String> {
    let namespace = format!("ginlab-probe-{}", unique());
    // A run that was killed may have left the name.
    let _ = command(&format!("ip netns delete {namespace}"));
    let ended = [
        format!("ip netns add {namespace}"),
        format!("ip -n {namespace} link add probe0 type veth peer name probe1"),
        format!("tc -n {namespace} qdisc add dev probe0 root tbf rate 1gbit burst 128kb latency 50ms"),
        format!("ip -n {namespace} link add name probe2 type bridge"),
    ]
    .iter()
    .find_map(|line| command(line).err());
    // An object that was not created cannot be removed.
    let _ = command(&format!("ip netns delete {namespace}"));
    ended.map(|why| format!("no lab of rails can be made here (root, iproute2, veth, tbf): {why}"))
}

/// Runs a command line. Returns its stdout, or an error of one line.
pub fn command(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().map_err(|error| format!("{line}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Lab {
    /// Creates a lab. Returns `None`, and prints the reason to stderr, if this machine does not support it.
    #[track_caller]
    pub fn up(args: &str) -> Option<Lab> {
        if let Some(why) = missing() {
            super::skip(&why);
            return None;
        }
        let lab = Lab { name: unique() };
        run(script(&format!("up --name {} {args}", lab.name))).expect(0);
        Some(lab)
    }

    /// Runs the script on this lab.
    pub fn script(&self, command: &str, args: &str) -> JobOutput {
        run(script(&format!("{command} --name {} {args}", self.name)))
    }

    /// Returns `ginlab` with these arguments on a node.
    pub fn ginlab(&self, node: usize, args: &str) -> Command {
        self.program(node, &format!("{} {args}", env!("CARGO_BIN_EXE_ginlab")))
    }

    /// Returns any program on a node; `words` are separated by spaces.
    pub fn program(&self, node: usize, words: &str) -> Command {
        script(&format!("exec --name {} {node} -- {words}", self.name))
    }

    /// Returns the namespace of a node.
    pub fn namespace(&self, node: usize) -> String {
        format!("ginlab-lab-{}-{node}", self.name)
    }

    /// Returns the namespaces of this lab that exist.
    pub fn left(&self) -> Vec<String> {
        namespaces(&self.name)
    }
}

/// Returns the existing namespaces of a lab.
pub fn namespaces(name: &str) -> Vec<String> {
    let all = command("ip netns list").unwrap();
    let names = all.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|namespace| namespace.starts_with(&format!("ginlab-lab-{name}-"))).map(str::to_owned).collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The lab may have been taken down already.
        let _ = script(&format!("down --name {}", self.name)).output();
    }
}
