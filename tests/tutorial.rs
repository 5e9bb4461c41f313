//! The tutorial: runs its five programs on the emulated device, over the worst-case network model, and compares
//! docs/tutorial with the sources and with the output.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

// Compiled into this test, because cargo builds the examples themselves only if no test is named.
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../examples/02_put_and_quiet.rs"]
mod put_and_quiet;
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../examples/01_ring.rs"]
mod ring;
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../examples/03_signal.rs"]
mod signal;
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../examples/04_two_rails.rs"]
mod two_rails;
#[allow(dead_code, reason = "its main is the program's")]
#[path = "../examples/05_your_kernel.rs"]
mod your_kernel;

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::cuda::DeviceChoice;
use ginlab::gin::{Fabric, PePath, WorldOptions};
use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;

/// One part of the tutorial: its page and its program.
struct Part {
    page: &'static str,
    program: &'static str,
}

macro_rules! part {
    ($page:literal, $program:literal) => {
        Part {
            page: include_str!(concat!("../docs/tutorial/", $page, ".md")),
            program: include_str!(concat!("../examples/", $program, ".rs")),
        }
    };
}

const PARTS: [Part; 5] = [
    part!("01-ring", "01_ring"),
    part!("02-put-and-quiet", "02_put_and_quiet"),
    part!("03-signal", "03_signal"),
    part!("04-two-rails", "04_two_rails"),
    part!("05-your-kernel", "05_your_kernel"),
];
const KERNELS: &str = include_str!("../kernels/src/tutorial.rs");
const INDEX: &str = include_str!("../docs/tutorial/README.md");

/// Returns the contents of the blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("\n```{language}\n");
    page.split(start.as_str()).skip(1).map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// Returns whether a line matches a pattern, in which `...` stands for any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split("...");
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Checks that the output is the one that the page shows.
fn is_as_shown(part: usize, output: &str) {
    let shown = blocks(PARTS[part - 1].page, "text");
    assert_eq!(shown.len(), 1, "part {part}: one block of output");
    let (patterns, lines): (Vec<&str>, Vec<&str>) = (shown[0].lines().collect(), output.lines().collect());
    let is_same = patterns.len() == lines.len();
    assert!(is_same && patterns.iter().zip(&lines).all(|(pattern, line)| matches(pattern, line)), "{output}");
    assert!((1..=5).contains(&lines.len()), "{output}");
}

fn is_fabric(name: &str) -> bool {
    Fabric::named(Some(name), &[]).is_ok()
}

/// Returns the options of the programs, for the emulated device and the worst-case network model.
fn worst(path: PePath, seed: u64) -> WorldOptions {
    let fabric = Fabric::named(Some(format!("worst:seed={seed}").as_str()), &[]).unwrap();
    WorldOptions { device: DeviceChoice::Emulated, heap_bytes: 4 << 20, path, fabric, ..WorldOptions::default() }
}

type Program = fn(&mut Bootstrap, &WorldOptions) -> Result<String, Box<dyn Error>>;

/// Runs a program with each rank as a thread. Returns the output of rank 0.
fn run(size: usize, options: &WorldOptions, program: Program) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let rank = |mut ranks: Bootstrap| program(&mut ranks, options).map_err(|error| error.to_string());
    let (rank, settings) = (&rank, bootstrap::BootstrapOptions::default);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..size)
            .map(|index| {
                scope.spawn(move || {
                    rank(Bootstrap::join(&[address], index, size, "token of a test", settings()).unwrap())
                })
            })
            .collect();
        let first = rank(Bootstrap::serve(listener, size, "token of a test", settings()).unwrap());
        others.into_iter().for_each(|other| drop(other.join().unwrap().unwrap()));
        first.unwrap()
    })
}

#[test]
fn ring_carries_every_command_once() {
    is_as_shown(1, &ring::laps(DeviceChoice::Emulated).unwrap());
}

#[test]
fn puts_arrive_with_either_quiet() {
    is_as_shown(2, &run(2, &worst(PePath::Rails, 1), put_and_quiet::puts));
}

#[test]
fn messages_are_complete_at_their_signals() {
    for seed in 1..=5 {
        is_as_shown(3, &run(2, &worst(PePath::Rails, seed), signal::messages));
    }
}

#[test]
fn rails_post_equal_shares() {
    is_as_shown(4, &run(2, &worst(PePath::Rails, 1), two_rails::cases));
}

#[test]
fn all_gather_is_right_on_both_paths() {
    for seed in 1..=3 {
        is_as_shown(5, &run(4, &worst(PePath::Auto, seed), your_kernel::both_paths));
    }
    let of_two = run(2, &worst(PePath::Auto, 1), your_kernel::both_paths);
    assert!(of_two.contains("path rails: 2 PEs have gathered 2000 values by worst"), "{of_two}");
}

#[test]
fn code_on_pages_is_part_of_the_sources() {
    for (index, part) in PARTS.iter().enumerate() {
        let shown = blocks(part.page, "rust");
        assert!(!shown.is_empty(), "part {}: no code", index + 1);
        for block in shown {
            assert!(part.program.contains(block) || KERNELS.contains(block), "part {}:\n{block}", index + 1);
        }
    }
}

#[test]
fn commands_on_pages_exist() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let exists = |folder: &str, name: &str| root.join(folder).join(format!("{name}.rs")).is_file();
    let makefile = include_str!("../Makefile");
    for page in PARTS.iter().map(|part| part.page).chain([INDEX]) {
        let commands: Vec<&str> = blocks(page, "sh").into_iter().flat_map(str::lines).collect();
        assert!(!commands.is_empty(), "no command:\n{page}");
        for command in commands {
            let words: Vec<&str> = command.split_whitespace().collect();
            let is_known = match words[..] {
                ["make", target] => makefile.contains(&format!("\n{target}:")),
                ["cargo", "test", "--test", test] => exists("tests", test),
                ["cargo", "run", "--release", "--example", example, ref rest @ ..] => {
                    let takes = match rest {
                        [] | ["--no-default-features"] => true,
                        ["--", fabric] => example != "01_ring" && is_fabric(fabric),
                        _ => false,
                    };
                    takes && exists("examples", example)
                }
                _ => false,
            };
            assert!(is_known, "{command}");
        }
    }
}

#[test]
fn every_page_is_in_the_index() {
    for entry in PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial").read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || INDEX.contains(&format!("]({name})")), "{name} is not in the index");
    }
    assert!(include_str!("../README.md").contains("(docs/tutorial/README.md)"));
}

#[test]
fn patterns_match_whole_lines() {
    assert!(matches("a ... b ...", "a 1 b 2") && matches("a", "a") && matches("...", ""));
    assert!(!matches("a", "a b") && !matches("a ... c", "a b") && !matches("b ...", "a b"));
}
