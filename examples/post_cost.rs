//! Measures the cost of a post for the posting thread, over a software NIC: single writes, and chains of writes that
//! share a doorbell. The posts go through libfabric's EFA provider, where the NIC runs inside the post. With `--verbs`
//! they do not use libfabric: requests are written to the NIC's queue, and the NIC is another thread.
//!
//! `cargo run --release --example post_cost -- [--verbs] [--csv FILE] [--windows N] [--chain N] [FABRIC:DOMAIN]`.
//! Instructions by library: `valgrind --tool=callgrind --toggle-collect='post_window*'
//! target/release/examples/post_cost`, then `callgrind_annotate`. scripts/tables/soft-efa-profile.toml does both.

use ginlab::fabric::{
    Access, Completion, LibfabricRail, LibfabricRegion, MemoryRange, Post, Rail, RailOptions, Reach, RemoteRegion,
    Transfer, VerbsRail, select_domains, soft, verbs,
};
use ginlab::report::{About, Key, OutputTarget, Report, ReportOptions, Row, RunOutcome};
use ginlab::versions::Versions;
use std::error::Error;
use std::time::{Duration, Instant};

/// Number of writes posted between two drains.
const WINDOW: u64 = 64;
const BYTES: u64 = 64;
/// Maximum wait for a window's completions.
const PATIENCE: Duration = Duration::from_secs(20);

const ABOUT: About = About { without: &["grid"], ..About::new("post", "Cost of a post for the posting thread") };

/// Posts a window of writes. Not inlined or mangled, so that tools find it by name.
#[unsafe(no_mangle)]
#[inline(never)]
fn post_window(rail: &mut LibfabricRail, region: &LibfabricRegion, remote: RemoteRegion, chain: u64) -> u64 {
    posts(rail, region, remote, chain)
}

/// Like [`post_window`], but over verbs.
#[unsafe(no_mangle)]
#[inline(never)]
fn post_window_verbs(rail: &mut VerbsRail, region: &verbs::VerbsRegion, remote: RemoteRegion, chain: u64) -> u64 {
    posts(rail, region, remote, chain)
}

#[inline(always)]
fn posts<R: Rail>(rail: &mut R, region: &R::Region, remote: RemoteRegion, chain: u64) -> u64 {
    let mut posted = 0;
    for token in 0..WINDOW {
        let more = (token + 1) % chain != 0;
        let transfer = Transfer {
            local_offset: 0,
            peer: 0,
            remote,
            remote_offset: BYTES,
            bytes: BYTES,
            immediate: None,
            token,
            more,
        };
        // SAFETY: the region's bytes do not change.
        posted += u64::from(unsafe { rail.write(region, &transfer) }.is_ok_and(|post| post == Post::Accepted));
    }
    posted
}

fn drain<R: Rail>(rail: &mut R, count: u64) -> Result<(), Box<dyn Error>> {
    let (mut completions, mut done) = (Vec::new(), 0);
    let started = Instant::now();
    while done < count {
        if started.elapsed() > PATIENCE {
            return Err(format!("{done} of {count} writes are complete after {} s", PATIENCE.as_secs()).into());
        }
        rail.poll(&mut completions)?;
        for completion in completions.drain(..) {
            match completion {
                Completion::Failed { error, .. } => return Err(error),
                _ => done += 1,
            }
        }
    }
    Ok(())
}

struct StudyOptions {
    csv: Option<OutputTarget>,
    windows: usize,
    chains: Vec<u64>,
    named: Vec<String>,
    verbs: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut asked = StudyOptions { csv: None, windows: 300, chains: vec![1, 16], named: Vec::new(), verbs: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--csv" => asked.csv = Some(value()?.as_str().into()),
            "--windows" => asked.windows = value()?.parse()?,
            "--chain" => asked.chains = vec![value()?.parse::<u64>()?.max(1)],
            "--verbs" => asked.verbs = true,
            _ => asked.named.push(word),
        }
    }
    // SAFETY: the process has one thread.
    unsafe { soft::use_cards_within_a_machine() };
    let cards = if asked.verbs { "efa-verbs/soft:p5,cards=1,unmoved" } else { "soft-efa:p5,cards=1,unmoved" };
    soft::load(cards)?;
    let plan = select_domains(cards, 1, Reach::SameHost, &asked.named, None, 0, 1)?;
    let domain = format!("{}:{}", plan.domains[0].fabric, plan.domains[0].name);
    if asked.verbs {
        let rail = VerbsRail::open(&plan.domains[0].name, 64, None)?;
        return measure(rail, &asked, &domain, post_window_verbs);
    }
    measure(LibfabricRail::open(&plan.domains[0], &RailOptions::default())?, &asked, &domain, post_window)
}

/// Measures posts on this rail. `window` posts one window of them.
fn measure<R: Rail>(
    mut rail: R,
    asked: &StudyOptions,
    domain: &str,
    window: fn(&mut R, &R::Region, RemoteRegion, u64) -> u64,
) -> Result<(), Box<dyn Error>> {
    let own = rail.address()?;
    rail.insert_peers(&[own])?;
    let buffer = vec![0u64; 1024];
    let memory = MemoryRange { address: buffer.as_ptr() as u64, bytes: 8192, cuda_device: None };
    // SAFETY: the memory outlives the region, which is dropped before it at the end of this function.
    let region = unsafe { rail.register(memory, Access::ALL) }?;
    let remote = rail.remote(&region);
    let label = soft::label().unwrap_or_default();
    let label = if asked.verbs { label.replacen("efa", verbs::PREFIX, 1) } else { label.to_owned() };
    let mut header = Versions::header();
    header.set(Key::Provider, label.as_str()).set(Key::Rails, vec![domain.to_owned()]);
    header.note(format!(
        "time_us is the time of one post of 64 B, of windows of {WINDOW} posts between which all completions are read; \
         chain=16: 16 posts share a doorbell (FI_MORE)"
    ));
    let mut report =
        Report::open(&ReportOptions { csv: asked.csv.clone(), ..ReportOptions::default() }, &header, &ABOUT)?;
    for &chain in &asked.chains {
        // Warm-up: the first post includes a handshake.
        let posted = posts(&mut rail, &region, remote, chain);
        drain(&mut rail, posted)?;
        let mut times = Vec::new();
        for _ in 0..asked.windows {
            let started = Instant::now();
            let posted = window(&mut rail, &region, remote, chain);
            let microseconds = started.elapsed().as_secs_f64() * 1e6;
            drain(&mut rail, posted)?;
            if posted == WINDOW {
                times.push(microseconds / WINDOW as f64);
            }
        }
        let mut row = Row::new("post", "post", "cpu", &label);
        (row.ranks, row.rails, row.size_bytes) = (1, Some(1), Some(BYTES));
        (row.mode, row.iterations) = (Some(format!("chain={chain}")), Some(WINDOW));
        row.times(&times).throughput(BYTES, 1);
        report.row(&row, &times)?;
    }
    Ok(report.finish(RunOutcome::Complete)?)
}
