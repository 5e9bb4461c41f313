//! What a post costs the thread that posts, in libfabric's EFA provider over a card in software: the provider's own time, one
//! write at a time and in chains that share a doorbell (FI_MORE).
//!
//! `cargo run --release --example post_cost -- [--csv FILE] [--windows N] [--chain N] [FABRIC:DOMAIN]`. Instructions by library:
//! `valgrind --tool=callgrind --toggle-collect=post_window target/release/examples/post_cost`, then `callgrind_annotate`.
//! scripts/soft-efa-profile.sh does both.

use ginlab::fabric::discover::{Reach, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, LibfabricRegion, RailOptions};
use ginlab::fabric::{Access, Completion, Memory, Post, Rail, RemoteRegion, Transfer, soft};
use ginlab::report::{About, Ending, Key, Options, Report, Row};
use ginlab::versions::Versions;
use std::error::Error;
use std::time::{Duration, Instant};

/// Writes posted between two drains.
const WINDOW: u64 = 64;
const BYTES: u64 = 64;
/// The longest wait for a window's completions.
const PATIENCE: Duration = Duration::from_secs(20);

const ABOUT: About = About { without: &["grid"], ..About::new("post", "What a post costs the thread that posts") };

/// Posts a window of writes; by its name tools find it.
#[unsafe(no_mangle)]
#[inline(never)]
fn post_window(rail: &mut LibfabricRail, region: &LibfabricRegion, remote: RemoteRegion, chain: u64) -> u64 {
    posts(rail, region, remote, chain)
}

#[inline(always)]
fn posts(rail: &mut LibfabricRail, region: &LibfabricRegion, remote: RemoteRegion, chain: u64) -> u64 {
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
        // SAFETY: the region's bytes stay as they are.
        posted += u64::from(unsafe { rail.write(region, &transfer) }.is_ok_and(|post| post == Post::Accepted));
    }
    posted
}

fn drain(rail: &mut LibfabricRail, count: u64) -> Result<(), Box<dyn Error>> {
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

fn main() -> Result<(), Box<dyn Error>> {
    let (mut csv, mut windows, mut chains, mut named) = (None, 300, vec![1, 16], Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--csv" => csv = Some(value()?.as_str().into()),
            "--windows" => windows = value()?.parse()?,
            "--chain" => chains = vec![value()?.parse::<u64>()?.max(1)],
            _ => named.push(word),
        }
    }
    // SAFETY: the process has one thread.
    unsafe { soft::use_cards_within_a_machine() };
    let cards = "soft-efa:p5,cards=1,unmoved";
    soft::load(cards)?;
    let plan = select_domains(cards, 1, Reach::SameHost, &named, None, 0, 1)?;
    let mut rail = LibfabricRail::open(&plan.domains[0], &RailOptions::default())?;
    let own = rail.address()?;
    rail.insert_peers(&[own])?;
    let buffer = vec![0u64; 1024];
    let memory = Memory { address: buffer.as_ptr() as u64, bytes: 8192, cuda_device: None };
    // SAFETY: the memory outlives the region, which ends with this function before it.
    let region = unsafe { rail.register(memory, Access::ALL) }?;
    let remote = rail.remote(&region);
    let label = soft::label().unwrap_or_default();
    let domain = format!("{}:{}", plan.domains[0].fabric, plan.domains[0].name);
    let mut header = Versions::header();
    header.set(Key::Provider, label).set(Key::Rails, vec![domain.clone()]);
    header.note(format!(
        "time_us is the time of one post of 64 B, of windows of {WINDOW} posts between which all completions are read; \
         chain=16: 16 posts share a doorbell (FI_MORE)"
    ));
    let mut report = Report::open(&Options { csv, ..Options::default() }, &header, &ABOUT)?;
    for chain in chains {
        // The first of them shakes hands, which is no part of a post.
        let posted = posts(&mut rail, &region, remote, chain);
        drain(&mut rail, posted)?;
        let mut times = Vec::new();
        for _ in 0..windows {
            let started = Instant::now();
            let posted = post_window(&mut rail, &region, remote, chain);
            let microseconds = started.elapsed().as_secs_f64() * 1e6;
            drain(&mut rail, posted)?;
            if posted == WINDOW {
                times.push(microseconds / WINDOW as f64);
            }
        }
        let mut row = Row::new("post", "post", "cpu", label);
        (row.ranks, row.rails, row.size_bytes) = (1, Some(1), Some(BYTES));
        (row.mode, row.iterations) = (Some(format!("chain={chain}")), Some(WINDOW));
        row.times(&times).throughput(BYTES, 1);
        report.row(&row, &times)?;
    }
    Ok(report.finish(Ending::Complete)?)
}
