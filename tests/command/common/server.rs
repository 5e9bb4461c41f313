//! `ginlab serve` under test.

use std::collections::HashMap;
use std::process::Command;

use super::{JobOutput, OutputStream, ProcessGroup, all_verified, ginlab, rows};

/// Returns the command with this token.
pub fn with_token(token: &str, args: &str) -> Command {
    let mut command = ginlab(args);
    command.env("GINLAB_TOKEN", token);
    command
}

/// A running server and its port.
pub struct ServeProcess(pub ProcessGroup, pub u16);

impl ServeProcess {
    pub fn start(args: &str) -> ServeProcess {
        ServeProcess::by(ginlab, args)
    }

    /// Starts a server by another command.
    pub fn by(program: impl Fn(&str) -> Command, args: &str) -> ServeProcess {
        let mut command = program(&format!("serve --listen 127.0.0.1:0 {args}"));
        command.env("GINLAB_TOKEN", "secret");
        let mut job = ProcessGroup::start(command);
        let line = job.until_line(OutputStream::Stdout, "listening address=127.0.0.1:");
        let port = facts(&line)["address"].rsplit_once(':').unwrap().1.parse().unwrap();
        ServeProcess(job, port)
    }

    pub fn join(&self, args: &str) -> Command {
        self.join_by(ginlab, args)
    }

    /// Returns a client by another command.
    pub fn join_by(&self, program: impl Fn(&str) -> Command, args: &str) -> Command {
        let mut command = program(&format!("join 127.0.0.1:{} {args}", self.1));
        command.env("GINLAB_TOKEN", "secret");
        command
    }

    /// Waits for the next event of this kind. Returns its facts.
    #[track_caller]
    pub fn until(&mut self, event: &str) -> HashMap<String, String> {
        facts(&self.0.until_line(OutputStream::Stdout, &format!("{event} ")))
    }

    pub fn finish(self) -> JobOutput {
        self.0.finish()
    }
}

/// Returns the facts of an event's line.
pub fn facts(line: &str) -> HashMap<String, String> {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[track_caller]
pub fn verified(done: JobOutput) {
    let rows = rows(&done.expect(0).stdout);
    all_verified(&rows);
    assert_eq!(rows.len(), 1);
}
