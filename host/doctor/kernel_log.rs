//! Kernel log: Xid errors of GPUs, with their time and the action that NVIDIA's catalog names.

use super::machine::Machine;
use super::{CheckState, Checked, Severity, fail, gpu, ok, skipped, warn};
use std::process::Command;

/// Immediate action for an Xid: "Resolution Bucket" of NVIDIA's catalog of Xid errors for driver r590, as listed by
/// awslabs/awsome-distributed-ai, 4.validation_and_observability/2.gpu-cluster-healthcheck, at 95b939cd (2026-07-23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// No action is required.
    Ignore,
    /// Restart the program that caused it.
    RestartProgram,
    /// No action: the catalog asks for observation or support, or does not list the number.
    Monitor,
    /// Reset the GPU.
    Reset,
    /// Restart the machine.
    Reboot,
    /// Replace the machine.
    Replace,
}

impl Action {
    /// Returns the action for an Xid number. `text` is the remainder of its line, which for number 154 states the
    /// action in words.
    fn of(number: u32, text: &str) -> Action {
        match number {
            154 if text.contains("Node Reboot Required") => Action::Reboot,
            154 if ["GPU Reset Required", "Drain and Reset", "Drain P2P"].iter().any(|part| text.contains(part)) => {
                Action::Reset
            }
            // The text is "(None)".
            154 => Action::Ignore,
            43 | 63 | 92 | 121 => Action::Ignore,
            13 | 31 | 94 | 126 => Action::RestartProgram,
            // Cleanup of the channels of a failed program; not in that list.
            45 => Action::RestartProgram,
            48 | 64 | 74 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156 | 158 => Action::Reset,
            79 | 151 | 168 => Action::Reboot,
            54 => Action::Replace,
            // 81, 125 and 157: contact support. 144 to 150: NVLink 5. 159: only if managed memory is in use. 162 to
            // 165: lifetime of a repair.
            _ => Action::Monitor,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Action::Ignore => "no action",
            Action::RestartProgram => "a fault of a program",
            Action::Monitor => "no immediate action is listed",
            Action::Reset => "reset the GPU",
            Action::Reboot => "restart the machine",
            Action::Replace => "check the hardware",
        }
    }
}

/// An Xid error in the kernel log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Xid {
    pub number: u32,
    pub action: Action,
    /// Time in seconds since the machine started, if the line states it.
    pub seconds: Option<f64>,
    /// The line from "Xid" on.
    pub text: String,
}

impl Xid {
    /// Parses a line such as `[  12.345678] NVRM: Xid (PCI:0000:20:00): 79, GPU has fallen off the bus.`
    pub(super) fn of(line: &str) -> Option<Xid> {
        let (before, text) = line.split_once("NVRM: Xid ")?;
        let (_, rest) = text.split_once("): ")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let number = digits.parse().ok()?;
        let stamp = || before.split_once('[')?.1.split_once(']')?.0.trim().parse().ok();
        Some(Xid { number, action: Action::of(number, rest), seconds: stamp(), text: format!("Xid {text}") })
    }

    /// Formats the error with its action and its age.
    fn describe(&self, uptime: Option<f64>) -> String {
        let age = self.seconds.zip(uptime).map(|(then, now)| now - then).filter(|age| *age >= 0.0);
        let age = age.map_or("at an unknown time".to_owned(), |age| match age {
            ..120.0 => format!("{age:.0} s ago"),
            ..7200.0 => format!("{:.0} min ago", age / 60.0),
            _ => format!("{:.1} h ago", age / 3600.0),
        });
        format!("{} ({}, {age})", self.text.trim_end(), self.action.words())
    }
}

/// Returns the lines of the kernel log about Xid errors since the machine started.
///
/// # Errors
/// Returns the reason why the log was not read, in one line.
pub(super) fn read() -> Result<Vec<String>, String> {
    // Both print the seconds since the start of the machine in brackets.
    const WAYS: [&[&str]; 2] = [&["dmesg"], &["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"]];
    let mut refused = Vec::new();
    for words in WAYS {
        let said = match Command::new(words[0]).args(&words[1..]).env("LC_ALL", "C").output() {
            Ok(said) => said,
            Err(error) => {
                refused.push(format!("{}: {error}", words[0]));
                continue;
            }
        };
        // A journal without the kernel's messages, and a sandbox, print nothing.
        if said.status.success() && !said.stdout.is_empty() {
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            return Ok(text.lines().filter(|line| line.contains("NVRM: Xid")).map(str::to_owned).collect());
        }
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        let line = text.lines().next().unwrap_or("it printed nothing").trim().to_owned();
        let line = line.trim_start_matches(words[0]).trim_start_matches(": ");
        refused.push(format!("{}: {line}", words[0]));
    }
    Err(refused.join("; "))
}

/// Returns the Xid errors of the log.
pub(super) fn xids(lines: &[String]) -> Vec<Xid> {
    lines.iter().filter_map(|line| Xid::of(line)).collect()
}

pub fn xid(machine: &Machine) -> Checked {
    gpu::needed(machine)?;
    let lines = match &machine.asked.xids {
        None => return skipped("a recorded machine has no kernel log"),
        Some(Err(why)) => {
            return skipped(format!("the kernel's log was not read: {why} (with root: sudo ginlab doctor)"));
        }
        Some(Ok(lines)) => lines,
    };
    let all = xids(lines);
    let uptime = machine.text("proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok());
    // Of equally severe errors, the latest is reported.
    let Some(worst) = all.iter().rev().max_by_key(|xid| xid.action) else {
        return ok("no Xid error in the kernel's log");
    };
    let worst = all.iter().rfind(|xid| xid.action == worst.action).unwrap_or(worst);
    let more = match all.len() {
        1 => String::new(),
        count => format!("; {count} Xid errors in all"),
    };
    let found = format!("{}{more}", worst.describe(uptime));
    let mend = match worst.action {
        Action::Ignore => "",
        Action::RestartProgram => "other programs need no remedy; compute-sanitizer finds the fault of that program",
        Action::Monitor => "watch the node; NVIDIA's catalog of Xid errors, or AWS support",
        Action::Reset => "drain the GPU and nvidia-smi --gpu-reset, or restart the machine",
        Action::Reboot => "restart the machine; replace the instance if it happens again",
        Action::Replace => "replace the instance",
    };
    match state_of(worst.action) {
        CheckState::Warn => warn(found, mend),
        CheckState::Fail => fail(found, mend),
        CheckState::Ok | CheckState::Skipped => ok(found),
    }
}

/// Returns the severity of the most severe Xid error of a machine.
pub fn severity(machine: &Machine) -> Severity {
    let Some(Ok(lines)) = &machine.asked.xids else { return Severity::None };
    match xids(lines).iter().map(|xid| xid.action).max() {
        None | Some(Action::Ignore) => Severity::None,
        Some(Action::RestartProgram | Action::Monitor) => Severity::Monitor,
        Some(Action::Reset) => Severity::Reset,
        Some(Action::Reboot) => Severity::Reboot,
        Some(Action::Replace) => Severity::Isolate,
    }
}

/// Returns the state of the check for an action.
pub(super) fn state_of(action: Action) -> CheckState {
    match action {
        Action::Ignore => CheckState::Ok,
        Action::RestartProgram | Action::Monitor => CheckState::Warn,
        Action::Reset | Action::Reboot | Action::Replace => CheckState::Fail,
    }
}
