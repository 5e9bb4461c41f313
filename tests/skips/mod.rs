//! Reports tests that a machine cannot run. With `GINLAB_SKIPS=listed`, which .ci/run sets, a reason that is not in
//! tests/skips.txt fails the test, because the output of passing tests is not read.

use std::io::Write;

/// Prefixes of allowed reasons, one per line; the text after `#` is an explanation.
const LISTED: &str = include_str!("../skips.txt");

/// Reports why a test does not run here.
pub fn skip(why: &str) {
    let listed = |line: &str| line.split('#').next().is_some_and(|start| why.starts_with(start.trim()));
    let lines = || LISTED.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty());
    let strict = std::env::var_os("GINLAB_SKIPS").is_some_and(|which| which == "listed");
    assert!(!strict || lines().any(listed), "skipped, and the reason is not in tests/skips.txt: {why}");
    // `println!` is captured by the test harness if the test passes, so stderr is written directly.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}
