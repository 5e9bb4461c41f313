//! Skips tests whose outcome is fully determined by this program, if the same program has already passed them. They
//! take 40 s of CPU time. They must not depend on clocks, threads, or files that the program does not contain or name
//! here.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

/// Runs the test `name`, unless this same program has passed it with these inputs and these `GINLAB_` variables. The
/// record is written after the test, so that a test that fails or is killed runs again. `rm -r target/tmp/passed` makes
/// all tests run again.
pub fn once(name: &str, inputs: &[u8], test: impl FnOnce()) {
    once_if_run(name, inputs, || {
        test();
        true
    });
}

/// Like [`once`], but `test` returns whether it could run: a skipped test has not passed.
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
        // `println!` is captured by the test harness if the test passes, so stderr is written directly.
        let _ = writeln!(std::io::stderr(), "{name}: this program has passed it before, says {}", file.display());
        return;
    }
    if test() {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(file, key).unwrap();
    }
}

/// The test runs if the program or an input has changed. A test that failed or was skipped runs again, regardless of
/// what passed before.
#[test]
fn passed_checks_are_repeated_for_other_programs() {
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
