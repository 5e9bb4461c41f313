//! Fuzzes every parser of external input: network frames, output of other tools, result files. No parser may panic,
//! hang, or use more memory than its input explains.
//!
//! Inputs are mutations of real samples, generated with a fixed seed, so that every run uses the same ones:
//!
//! ```text
//! cargo test --test fuzz                                  3 x 10^5 inputs per parser (slow ones: fewer)
//! GINLAB_FUZZ_INPUTS=100000000 cargo test --test fuzz -- --ignored    a chosen number of inputs, for slow ones too
//! GINLAB_FUZZ_SEED=7 GINLAB_FUZZ_INPUTS=... cargo test --test fuzz -- --ignored      another seed
//! GINLAB_FUZZ_ONLY=handshake GINLAB_FUZZ_THREADS=1 ...    only the parsers of this name, with this many threads
//! scripts/fuzz.sh FOLDER                                  10^7 per parser in a release, one parser after another
//! ```
//!
//! `parsers.rs` lists the parsers and their samples. A failure prints the input.
//!
//! `cargo-fuzz` is not used, because it requires a nightly compiler. `bolero` is not used either: on a stable compiler
//! it also draws from a generator, and here each input also bounds the memory that may be used.

#![allow(clippy::unwrap_used)]

mod parsers;
#[path = "../passed/mod.rs"]
mod passed;
#[path = "../random/mod.rs"]
mod random;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parsers::{PARSERS, Parser, Samples};
use random::XorShift;

/// Number of inputs of each parser in the short test, divided by its slowness.
const INPUTS: u64 = 300_000;
/// Number of inputs that a thread takes at a time: small enough that all threads finish at about the same time.
const CHUNK: u64 = 10_000;
/// Maximum length of an input. Limits of parsers are far below, and a missing limit shows as memory growth.
const LONGEST: usize = 2048;

/// Counts the memory that each thread has allocated.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn count(bytes: isize) {
    // A thread that is exiting has no counters.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: all calls are forwarded to the system's allocator. Counting allocates nothing, because the counters are plain
// cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: forwards the call; the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: forwards the call; the caller upholds the same contract.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the memory that an input of this length explains: text is split into fields and words that have some
/// tens of additional bytes, and a chart or a table is drawn from it.
fn explained(bytes: usize) -> isize {
    (1 << 20) + 512 * bytes as isize
}

impl XorShift {
    fn range(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..(start + self.below(most + 1)).min(length)
    }
}

/// Mutates an input in one to four ways.
fn spoil(input: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut XorShift) {
    const STRANGE: [u8; 10] = [0, 1, 9, 10, 13, b'"', 0x1b, 0x7f, 0x80, 0xff];
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(10) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = STRANGE[random.below(STRANGE.len())],
            2 if at < input.len() => input[at] = (random.next() >> 16) as u8,
            3 => drop(input.drain(random.range(input.len(), 16))),
            4 => drop(input.drain(random.range(input.len(), 512))),
            5 => input.truncate(at),
            6 => {
                let range = random.range(input.len(), 64);
                let copy = input[range].to_vec();
                input.splice(at..at, copy);
            }
            // Replaces a range by a range of another sample.
            7 => {
                let (from, to) = (random.range(other.len(), 256), random.range(input.len(), 256));
                input.splice(to, other[from].iter().copied());
            }
            _ => {
                let word = words[random.below(words.len())];
                for _ in 0..1 + random.below(2) * random.below(8) {
                    input.splice(at..at, word.bytes());
                }
            }
        }
        input.truncate(LONGEST);
    }
}

fn samples(parser: &Parser) -> Vec<Vec<u8>> {
    let read = |path: &&str| std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    match parser.samples {
        Samples::Texts(texts) => texts.iter().map(|text| text.as_bytes().to_vec()).collect(),
        Samples::Files(paths) => paths.iter().map(read).collect(),
        Samples::Both(paths, texts) => {
            paths.iter().map(read).chain(texts.iter().map(|text| text.as_bytes().to_vec())).collect()
        }
        Samples::Made(make) => make(),
    }
}

/// Generates one input: a mutated sample, or part of a long one that starts at a line.
fn make(input: &mut Vec<u8>, samples: &[Vec<u8>], words: &[&str], random: &mut XorShift) {
    let sample = &samples[random.below(samples.len())];
    let start = if sample.len() <= LONGEST { 0 } else { random.below(sample.len() - LONGEST / 2) };
    let line = sample[..start].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    input.clear();
    // Usually short parts, so that more of them can be tried.
    let length = if sample.len() <= LONGEST { LONGEST } else { 64 << random.below(5) };
    input.extend_from_slice(&sample[line..sample.len().min(line + length)]);
    spoil(input, &samples[random.below(samples.len())], words, random);
}

/// Runs a parser on `inputs` inputs of this seed. Returns the number that it accepted, or a description of the fault.
fn chunk(parser: &Parser, samples: &[Vec<u8>], seed: u64, inputs: u64) -> Result<u64, String> {
    let mut random = XorShift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut taken, mut input) = (0, Vec::with_capacity(2 * LONGEST));
    for number in 0..inputs {
        make(&mut input, samples, parser.words, &mut random);
        INPUT.with_borrow_mut(|copy| copy.clone_from(&input));
        let before = HELD.get();
        MOST.set(before);
        taken += u64::from((parser.parse)(&input));
        let most = MOST.get() - before;
        if most > explained(input.len()) {
            return Err(format!("{most} bytes of memory for an input of {} (number {number})", input.len()));
        }
    }
    Ok(taken)
}

/// Runs all parsers on the number of inputs that `inputs` returns, on all cores.
fn fuzz(seed: u64, inputs: impl Fn(&Parser) -> u64 + Sync) {
    let samples: Vec<_> = PARSERS.iter().map(samples).collect();
    // Every parser must accept its unmodified samples, or the inputs would prove nothing.
    let refuses = |(parser, samples): &(&Parser, &Vec<Vec<u8>>)| !samples.iter().all(|sample| (parser.parse)(sample));
    let refused = PARSERS.iter().zip(&samples).filter(refuses).map(|(parser, _)| parser.name);
    assert_eq!(refused.collect::<Vec<_>>(), [""; 0], "these refuse a sample");
    let chunks: Vec<(usize, u64, u64)> = PARSERS
        .iter()
        .enumerate()
        .flat_map(|(index, parser)| {
            let all = inputs(parser);
            (0..all.div_ceil(CHUNK)).map(move |number| (index, number, CHUNK.min(all - number * CHUNK)))
        })
        .collect();
    let counters = || PARSERS.iter().map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
    let (next, taken, spent) = (AtomicUsize::new(0), counters(), counters());
    let work = || {
        while let Some(&(index, number, inputs)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (parser, seed) = (&PARSERS[index], seed ^ ((index as u64) << 48 | (number + 1)));
            let began = Instant::now();
            let outcome = catch_unwind(|| chunk(parser, &samples[index], seed, inputs));
            spent[index].fetch_add(began.elapsed().as_nanos() as usize, Ordering::Relaxed);
            let why = match outcome {
                Ok(Ok(count)) => {
                    taken[index].fetch_add(count as usize, Ordering::Relaxed);
                    continue;
                }
                Ok(Err(why)) => why,
                // The panic has already printed its message.
                Err(_) => "a panic".to_owned(),
            };
            let input = INPUT.with_borrow(|input| input.escape_ascii().to_string());
            panic!("{}, chunk {number}: {why}; the input is b\"{input}\"", parser.name);
        }
    };
    std::thread::scope(|scope| {
        let all = std::thread::available_parallelism().map_or(2, |count| count.get());
        let threads = number("GINLAB_FUZZ_THREADS", all as u64) as usize;
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            assert!(thread.join().is_ok(), "see above");
        }
    });
    for ((parser, taken), nanoseconds) in PARSERS.iter().zip(taken).zip(spent) {
        let (taken, all) = (taken.into_inner() as u64, inputs(parser));
        if all == 0 {
            continue;
        }
        let seconds = nanoseconds.into_inner() as f64 / 1e9;
        println!("{}: {all} inputs, {taken} of them taken, {seconds:.1} s of one core", parser.name);
        // Inputs were both accepted and rejected.
        assert!(all < 1000 || (taken > 0 && taken < all), "{}: {taken} of {all} inputs were taken", parser.name);
    }
}

/// Returns a number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}

#[test]
fn corrupted_inputs_do_not_panic_or_exhaust_memory() {
    const SEED: u64 = 20_261_121;
    let is_made = |parser: &Parser| matches!(parser.samples, Samples::Made(_));
    let part = |made: bool| move |parser: &Parser| if is_made(parser) == made { INPUTS / parser.slowness } else { 0 };
    // Handshakes have other keys each time.
    fuzz(SEED, part(true));
    let fixed: Vec<_> = PARSERS.iter().filter(|parser| !is_made(parser)).map(samples).collect();
    passed::once("spoilt_inputs", format!("{fixed:?}").as_bytes(), || fuzz(SEED, part(false)));
}

#[test]
#[ignore = "as long as GINLAB_FUZZ_INPUTS says"]
fn many_more_corrupted_inputs() {
    let (inputs, seed) = (number("GINLAB_FUZZ_INPUTS", 10 * INPUTS), number("GINLAB_FUZZ_SEED", 1));
    let only = std::env::var("GINLAB_FUZZ_ONLY").unwrap_or_default();
    let is_meant = |parser: &Parser| parser.name.contains(&only);
    assert!(PARSERS.iter().any(is_meant), "GINLAB_FUZZ_ONLY={only:?} names no parser");
    fuzz(seed, |parser| if is_meant(parser) { inputs } else { 0 });
}
