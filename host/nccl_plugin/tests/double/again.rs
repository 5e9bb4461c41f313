//! Tests that need a process of their own: each starts this program again, for itself alone.

use std::ffi::OsString;
use std::process::Command;

/// Says to a test that it has been started again.
const AGAIN: &str = "GINLAB_DOUBLE_AGAIN";

/// Runs what is in `test`, the test of this name (with its module), in a process with these variables.
pub fn alone(name: &str, variables: impl FnOnce() -> Vec<(String, OsString)>, test: impl FnOnce()) {
    if std::env::var_os(AGAIN).is_some() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).envs(variables()).env(AGAIN, "1");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{}: {said}", done.status);
}
