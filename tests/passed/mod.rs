//! Tests whose outcome this program alone determines: the same program passes them again, and another one has to pass them itself. They take
//! 40 s of a core, and nothing of what they are for is left to chance: no clock, no thread, no file that the program does not hold or name
//! here.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

/// Runs a test of this name, unless this very program has passed it with these inputs and these `GINLAB_` variables. What keeps that is written behind
/// the test, so that one that fails, or is killed, runs again. `rm -r target/tmp/passed` has all run again.
pub fn once(name: &str, inputs: &[u8], test: impl FnOnce()) {
    once_if_run(name, inputs, || {
        test();
        true
    });
}

/// The same for a test that says whether it could run: one that was skipped has not passed.
pub fn once_if_run(name: &str, inputs: &[u8], test: impl FnOnce() -> bool) {
    let program = std::env::current_exe().and_then(std::fs::read).unwrap();
    once_in(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("passed"), (name, &program, inputs), test);
}

fn once_in(folder: &Path, (name, program, inputs): (&str, &[u8], &[u8]), test: impl FnOnce() -> bool) {
    let mut hasher = DefaultHasher::new();
    let asked: BTreeMap<_, _> =
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GINLAB_")).collect();
    (name, program, inputs, asked).hash(&mut hasher);
    let (file, key) = (folder.join(name), format!("{:016x}", hasher.finish()));
    if std::fs::read_to_string(&file).is_ok_and(|before| before == key) {
        // Not `println!`, which a test that passes swallows.
        let _ = writeln!(std::io::stderr(), "{name}: this program has passed it before, says {}", file.display());
        return;
    }
    if test() {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(file, key).unwrap();
    }
}

/// Another program, other inputs: the test runs. One that has failed, or was skipped, runs again, whatever passed before it.
#[test]
fn what_has_passed_is_repeated_for_any_other_program() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("passed-{}", std::process::id()));
    let runs = |program: &[u8], inputs: &[u8]| {
        let mut ran = false;
        once_in(&folder, ("a test", program, inputs), || {
            ran = true;
            true
        });
        ran
    };
    assert!(runs(b"one", b"") && !runs(b"one", b""));
    assert!(runs(b"on", b"e"), "what lies between program and inputs counts");
    assert!(runs(b"two", b"") && runs(b"two", b"input") && !runs(b"two", b"input"));
    let fails = || once_in(&folder, ("a test", b"three", b""), || panic!("as it should"));
    for _ in 0..2 {
        assert!(std::panic::catch_unwind(fails).is_err());
    }
    assert!(runs(b"three", b"") && !runs(b"three", b""));
    once_in(&folder, ("a test", b"four", b""), || false);
    assert!(runs(b"four", b"") && !runs(b"four", b""));
    std::fs::remove_dir_all(folder).unwrap();
}
