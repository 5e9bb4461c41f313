//! Tests that need their own process. Each starts this executable again to run only that test.

use std::ffi::OsString;
use std::process::Command;

/// Variable that marks a process that was started again.
const AGAIN: &str = "GINLAB_DOUBLE_AGAIN";

/// Returns whether this process runs only one test.
pub fn is_alone() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs `test`, the body of the test `name` (with its module), in its own process with these variables.
pub fn alone(name: &str, variables: impl FnOnce() -> Vec<(String, OsString)>, test: impl FnOnce()) {
    if is_alone() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).envs(variables()).env(AGAIN, "1");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{}: {said}", done.status);
}
