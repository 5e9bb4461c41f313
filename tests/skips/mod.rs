//! Tests that a machine cannot run: they say so. Where all have to run (`GINLAB_SKIPS=listed`, as .ci/run sets it), a reason that is not in
//! tests/skips.txt fails: nobody reads the output of what passes.

use std::io::Write;

/// Reasons that are allowed, a beginning a line; what stands behind `#` says why.
const LISTED: &str = include_str!("../skips.txt");

/// Says why a test does not run here.
pub fn skip(why: &str) {
    let listed = |line: &str| line.split('#').next().is_some_and(|start| why.starts_with(start.trim()));
    let lines = || LISTED.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty());
    let strict = std::env::var_os("GINLAB_SKIPS").is_some_and(|which| which == "listed");
    assert!(!strict || lines().any(listed), "skipped, and the reason is not in tests/skips.txt: {why}");
    // Not `println!`, which a test that passes swallows.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}
