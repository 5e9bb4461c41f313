//! One binary for every Linux: the libraries that it links, and its behaviour without libfabric.

use std::process::Command;

use crate::common::{all_verified, ginlab, proxy, rows, run};

/// Returns the shared objects that the loader needs before the program starts (DT_NEEDED), for a 64-bit little-endian
/// ELF file.
fn needed(file: &[u8]) -> Vec<String> {
    let number = |offset: usize, bytes: usize| {
        let bytes = file[offset..offset + bytes].iter().rev();
        usize::try_from(bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))).unwrap()
    };
    assert_eq!(&file[..6], b"\x7fELF\x02\x01", "64 bits, little-endian");
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    // Type, offset in the file, address, bytes in the file.
    let segments: Vec<[usize; 4]> = (0..count)
        .map(|index| table + index * size)
        .map(|at| [number(at, 4), number(at + 8, 8), number(at + 16, 8), number(at + 32, 8)])
        .collect();
    let [_, dynamic, _, bytes] = *segments.iter().find(|segment| segment[0] == 2).expect("PT_DYNAMIC");
    let entries = (dynamic..dynamic + bytes).step_by(16).map(|at| (number(at, 8), number(at + 8, 8)));
    let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == 5).expect("DT_STRTAB").1;
    let loaded = |segment: &&[usize; 4]| segment[0] == 1 && (segment[2]..segment[2] + segment[3]).contains(&strings);
    let [_, offset, address, _] = *segments.iter().find(loaded).expect("a PT_LOAD with the names");
    let name = |at: usize| {
        let bytes = &file[strings - address + offset + at..];
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap()).into_owned()
    };
    entries.iter().filter(|(tag, _)| *tag == 1).map(|(_, at)| name(*at)).collect()
}

#[test]
fn binary_links_only_standard_libraries() {
    let needed = needed(&std::fs::read(env!("CARGO_BIN_EXE_ginlab")).unwrap());
    assert!(needed.iter().any(|name| name.starts_with("libc.")), "the dynamic section was misread: {needed:?}");
    let bare = ["libc.", "libm.", "libgcc_s.", "libpthread.", "libdl.", "librt.", "ld-linux"];
    let mpi = ["libmpi", "libopen-", "libhwloc", "libevent"];
    let known = |name: &&String| {
        let starts = |parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
        starts(&bare) || cfg!(feature = "mpi") && starts(&mpi)
    };
    let strange: Vec<_> = needed.iter().filter(|name| !known(name)).collect();
    assert!(strange.is_empty(), "the binary needs {strange:?} to start");
}

/// Returns the command as on a machine without libfabric.
fn without(mut command: Command) -> Command {
    command.env("GINLAB_LIBFABRIC", "/nonexistent/libfabric.so").env("GINLAB_TOKEN", "secret");
    command
}

/// Checks what every error must contain: that libfabric is missing, where it was searched, and how to install it.
fn tells_all(line: &str) {
    for part in [
        "libfabric",
        "/nonexistent/libfabric.so",
        "apt-get install libfabric1",
        "EFA installer",
        "-p null",
        "-p model:p5",
    ] {
        assert!(line.contains(part), "no {part} in: {line}");
    }
}

#[test]
fn programs_that_need_libfabric_are_rejected_without_it() {
    for args in [
        "efa",
        "efa --provider tcp",
        "write",
        "write -p shm",
        "all2all",
        "sendrecv",
        "bootstrap",
        "bootstrap --np 3 --rails 2",
        "echo",
        "echo --listen 127.0.0.1:0",
        "serve --listen 127.0.0.1:0",
        "join 127.0.0.1:9",
        "proxy -d emulated -p tcp",
        "proxy -d emulated -p efa",
        "proxy -d emulated --domain lo",
    ] {
        let done = run(without(ginlab(args))).expect(2);
        tells_all(done.complaint());
        assert!(done.stdout.is_empty(), "{args}: {}", done.stdout);
    }
}

#[test]
fn modelled_cards_verify_without_libfabric() {
    let done = run(without(proxy(&format!("-p model:p5 --np 2 {SHORT}")))).expect(0);
    assert!(done.stderr.contains("# libfabric: none"), "{}", done.stderr);
    let found = rows(&done.stdout);
    all_verified(&found);
    assert!(!found.is_empty() && found.iter().all(|row| row.fabric == "model:p5"), "{found:?}");
}

const SHORT: &str = "-n 5 -w 1 -r 2 --rails 1,4 -b 64 -e 256 -f 2 --mode quiet,nbi --check --csv -";

#[test]
fn puts_end_in_proxy_without_libfabric() {
    // Explicitly requested null rails cause no message about libfabric.
    let done = run(without(proxy(&format!("-p null {SHORT}")))).expect(0);
    assert!(done.complaints().is_empty() && !done.stderr.contains("apt-get"), "{}", done.stderr);
    let asked = rows(&done.stdout);
    all_verified(&asked);
    // If the program chooses null rails for the ranks of the demo, one line and the header report the choice and the
    // reason.
    let done = run(without(proxy(&format!("--np 2 {SHORT}")))).expect(0);
    tells_all(done.complaint());
    assert!(done.complaint().contains("using provider null, with which puts end in the proxy"), "{}", done.complaint());
    assert!(done.stderr.contains("# provider: null") && done.stderr.contains("# note: using provider null"));
    let chosen = rows(&done.stdout);
    all_verified(&chosen);
    assert_eq!(chosen.len(), asked.len());
    assert!(chosen.iter().all(|row| row.fabric == "null"), "{chosen:?}");
}

#[test]
fn other_programs_run_without_libfabric() {
    let version = run(without(ginlab("--version"))).expect(0).stdout;
    assert!(version.lines().any(|line| line == "libfabric   none"), "{version}");
    let dump = run(without(ginlab("efa --from tests/fixtures/p5"))).expect(0);
    assert!(dump.stdout.contains("rdmap"), "{}", dump.stdout);
    run(without(ginlab("affinity"))).expect(0);
    run(without(ginlab("model --help"))).expect(0);
    let queue = run(without(ginlab("queue -d emulated -n 20 -r 1 --grid 1 --block 2 --csv -"))).expect(0);
    assert!(!rows(&queue.stdout).is_empty() && queue.stderr.contains("# libfabric: none"), "{}", queue.stderr);
}

const SETUP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/setup.sh");

/// Distributions name another library such that a careless pattern takes it for libclang.
#[test]
fn setup_distinguishes_libclang_from_libclang_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("usr/lib/llvm-14/lib");
    std::fs::create_dir_all(&libraries).unwrap();
    // The script's own function, with a substitute for /usr.
    let script = r#"unset LIBCLANG_PATH; eval "$(sed -n '/^has_libclang() {/,/^}/p' "$1" | sed "s|/usr/|$2/usr/|g")"; has_libclang"#;
    let found = || {
        let root = folder.path().to_str().unwrap();
        let status =
            Command::new("bash").args(["-euo", "pipefail", "-c", script, "bash", SETUP, root]).status().unwrap();
        match status.code() {
            Some(0) => true,
            Some(1) => false,
            _ => panic!("{status}"),
        }
    };
    assert!(!found());
    for other in ["libclang-cpp.so.14", "libclang-cpp.so"] {
        std::fs::write(libraries.join(other), "").unwrap();
        assert!(!found(), "{other} is not libclang");
    }
    std::fs::write(libraries.join("libclang-14.so.1"), "").unwrap();
    assert!(found());
}

#[test]
fn demo_requires_only_linker_and_rust() {
    let script = std::fs::read_to_string(SETUP).unwrap();
    let (demo, _) = script.split_once("\nif ((level >= 3)); then").unwrap();
    let packages = |word: &str| -> Vec<&str> {
        demo.lines().filter_map(|line| line.strip_prefix(word)?.split(' ').next()).collect()
    };
    assert_eq!(packages("need "), ["gcc", "libc6-dev", "ca-certificates"]);
    assert_eq!(packages("want "), ["libfabric1"]);
}
