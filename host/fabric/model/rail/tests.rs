//! Tests of one card, and of a thread with four cards, over rails that move nothing.

use super::*;
use crate::model::Profile;
use crate::null::NullRail;
use crate::testing::faulty::{FaultyRail, RailFaults};
use std::time::{Duration, Instant};

type Opened = (ModelledNics, ModelRail<NullRail>, Rc<<NullRail as Rail>::Region>, RemoteRegion);

/// Creates a card of p5 with space for `depth` writes.
fn card(depth: f64) -> Opened {
    let mut profile = Profile::named("p5").expect("known");
    profile.queue_depth.value = depth;
    opened(profile)
}

fn opened(profile: Profile) -> Opened {
    let model = ModelledNics::new("p5", profile, 1, 3);
    let mut rail = model.rails(0, [NullRail::new()]).remove(0);
    rail.insert_peers(&[Vec::new()]).expect("a peer");
    // SAFETY: a null rail does not access the memory.
    let region = unsafe { rail.register(MemoryRange { address: 0, bytes: 1 << 30, cuda_device: None }, Access::ALL) }
        .expect("a region");
    let remote = rail.remote(&region);
    (model, rail, region, remote)
}

fn write((_, rail, region, remote): &mut Opened, bytes: u64, token: u64) -> Post {
    let transfer = Transfer::new(0, (0, *remote, 0), bytes, token);
    // SAFETY: a null rail does not access the memory.
    unsafe { rail.write(region, &transfer) }.expect("posted")
}

/// Polls until `count` transfers are complete. Returns their tokens in order of completion.
fn complete(rail: &mut ModelRail<NullRail>, count: usize) -> Vec<u64> {
    let (mut completions, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while completions.len() < count && Instant::now() < deadline {
        rail.poll(&mut completions).expect("polled");
    }
    let token = |completion: Completion| match completion {
        Completion::Done { token } => token,
        other => panic!("{other:?}"),
    };
    completions.into_iter().map(token).collect()
}

#[test]
fn full_nic_returns_again_until_completion() {
    let mut opened = card(4.0);
    let posts: Vec<Post> = (0..6).map(|token| write(&mut opened, 64, token)).collect();
    assert_eq!(posts, [Post::Accepted, Post::Accepted, Post::Accepted, Post::Accepted, Post::Again, Post::Again]);
    assert_eq!(complete(&mut opened.1, 4).len(), 4);
    assert_eq!(write(&mut opened, 64, 9), Post::Accepted);
}

#[test]
fn completions_arrive_once_unordered_never_early() {
    let mut opened = card(4096.0);
    let started = Instant::now();
    (0..500).for_each(|token| assert_eq!(write(&mut opened, 64, token), Post::Accepted));
    let order = complete(&mut opened.1, 500);
    // 500 writes start at a rate of 0.8 million per second, and the last one still takes a round trip of at least 15
    // us.
    assert!(started.elapsed() >= Duration::from_nanos(499 * 1250 + 15_000), "{:?}", started.elapsed());
    assert!(order.windows(2).any(|pair| pair[0] > pair[1]), "jitter lets some overtake");
    let mut sorted = order;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..500).collect::<Vec<_>>());
    let mut late = Vec::new();
    opened.1.poll(&mut late).expect("polled");
    assert!(late.is_empty());
}

#[test]
fn post_cpu_time_precedes_wire_time() {
    let mut profile = Profile::named("p5").expect("known");
    profile.post_us.value = 300.0;
    let mut opened = opened(profile);
    let started = Instant::now();
    assert_eq!(write(&mut opened, 64, 0), Post::Accepted);
    complete(&mut opened.1, 1);
    assert!(started.elapsed() >= Duration::from_micros(315), "{:?}", started.elapsed());
}

#[test]
fn bytes_are_moved_below_or_not_at_all() {
    let mut opened = card(64.0);
    write(&mut opened, 1000, 0);
    opened.0.move_bytes(false);
    write(&mut opened, 5000, 1);
    assert_eq!(complete(&mut opened.1, 2).len(), 2);
    let below = &opened.1.inner;
    assert_eq!((below.counted().transfers, below.counted().bytes), (1, 1000));
}

#[test]
fn bytes_later_than_model_are_counted() {
    let model = ModelledNics::new("p5", Profile::named("p5").expect("known"), 1, 3);
    // The number of polls exceeds those that fit in a round trip.
    let late = FaultyRail::new(NullRail::new(), RailFaults { delay_polls: 100_000, ..RailFaults::default() });
    let mut rail = model.rails(0, [late]).remove(0);
    rail.insert_peers(&[Vec::new()]).expect("a peer");
    // SAFETY: a null rail does not access the memory.
    let region = unsafe { rail.register(MemoryRange { address: 0, bytes: 64, cuda_device: None }, Access::ALL) }
        .expect("a region");
    let transfer = Transfer::new(0, (0, rail.remote(&region), 0), 64, 5);
    assert_eq!(model.behind(), [Duration::ZERO]);
    // SAFETY: a null rail does not access the memory.
    unsafe { rail.write(&region, &transfer) }.expect("posted");
    let mut completions = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while completions.is_empty() && Instant::now() < deadline {
        rail.poll(&mut completions).expect("polled");
    }
    assert!(matches!(completions[..], [Completion::Done { token: 5 }]), "{completions:?}");
    assert!(rail.polls >= 100_000 && model.behind()[0] > Duration::ZERO, "{:?}", model.behind());
}

#[test]
fn debt_is_forgiven_only_when_all_rails_idle() {
    let model = ModelledNics::new("p5", Profile::named("p5").expect("known"), 4, 3);
    let mut rails = model.rails(0, (0..4).map(|_| NullRail::new()));
    let poster = rails[0].poster.clone();
    let mut poll = |rail: usize| {
        let mut completions = Vec::new();
        rails[rail].poll(&mut completions).expect("polled");
        assert!(completions.is_empty());
    };
    poster.debt.set(500);
    // Runs one iteration of a thread that has posted before.
    (0..4).for_each(&mut poll);
    assert_eq!(poster.debt.get(), 500);
    poster.was_busy();
    (0..4).for_each(&mut poll);
    assert_eq!(poster.debt.get(), 500);
    poll(0);
    assert_eq!(poster.debt.get(), 0);
}

#[test]
fn late_wait_is_counted_once() {
    let (model, mut rail, ..) = card(4.0);
    rail.count_wait(1_000_000, 5_000_000);
    rail.count_wait(2_000_000, 6_000_000);
    rail.count_wait(3_000_000, 4_000_000);
    assert_eq!(model.behind(), [Duration::from_micros(5)]);
}

#[test]
fn rails_of_one_card_share_its_wire() {
    let mut opened = card(64.0);
    let mut other = opened.0.rails(0, [NullRail::new()]).remove(0);
    other.insert_peers(&[Vec::new()]).expect("a peer");
    let started = Instant::now();
    // 8 MiB take 0.7 ms, and the small write must wait until they are sent.
    write(&mut opened, 8 << 20, 0);
    let mut second = (opened.0.clone(), other, opened.2.clone(), opened.3);
    write(&mut second, 64, 1);
    assert_eq!(complete(&mut second.1, 1), [1]);
    assert!(started.elapsed() >= Duration::from_micros(690), "{:?}", started.elapsed());
}
