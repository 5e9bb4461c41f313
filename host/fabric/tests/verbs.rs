//! Verbs rails, and their objects for kernels, over software NICs that reorder: tests of transfers and refusals.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use efa_queue::{completion, rules};
use ginlab_fabric::discover::Reach;
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::verbs::{CountedEvent, PairOptions, Verbs, VerbsRail, cards};
use ginlab_fabric::{
    Access, Completion, Fabric, FabricError, MemoryRange, Message, Messages, Post, Rail, RankPlace, RemoteRegion,
    Transfer, soft,
};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns the names of two software NICs, loaded once for this process.
fn names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        soft::load("efa-verbs/soft:fast,seed=5,reorder=9,cards=2").unwrap();
        let found = cards().unwrap();
        assert!(found.iter().all(|card| card.pci.is_some() && card.provider == "efa-verbs/soft:fast"), "{found:?}");
        found.into_iter().map(|card| card.name).collect()
    })
}

fn open(card: usize) -> VerbsRail {
    VerbsRail::open(&names()[card], 64, Some(64)).unwrap()
}

fn register(rail: &mut VerbsRail, bytes: &mut [u8]) -> ginlab_fabric::verbs::VerbsRegion {
    let memory =
        MemoryRange { address: bytes.as_mut_ptr().expose_provenance() as u64, bytes: bytes.len(), cuda_device: None };
    // SAFETY: the memory outlives the region in every test.
    unsafe { rail.register(memory, Access::ALL) }.unwrap()
}

/// Polls until `count` completions have arrived.
fn poll(rail: &mut VerbsRail, count: usize) -> Vec<Completion> {
    let (started, mut found) = (Instant::now(), Vec::new());
    while found.len() < count {
        rail.poll(&mut found).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{found:?}");
        std::thread::yield_now();
    }
    found
}

fn tokens(completions: &[Completion]) -> Vec<u64> {
    let token = |completion: &Completion| match completion {
        Completion::Done { token } => *token,
        other => panic!("{other:?}"),
    };
    completions.iter().map(token).collect()
}

fn failure(mut completions: Vec<Completion>) -> FabricError {
    match completions.pop() {
        Some(Completion::Failed { error, .. }) if completions.is_empty() => *error,
        other => panic!("{other:?}"),
    }
}

fn transfer(offset: u64, bytes: u64, remote: RemoteRegion, token: u64) -> Transfer {
    Transfer::new(offset, (0, remote, offset), bytes, token)
}

#[test]
fn bytes_and_immediates_arrive_once_in_any_order() {
    let (mut here, mut there) = (open(0), open(1));
    assert_eq!((here.limits().max_outstanding, here.limits().immediate_bytes), (64, 4));
    here.add_peer(&there.address().unwrap()).unwrap();
    there.add_peer(&here.address().unwrap()).unwrap();
    let (mut ours, mut theirs) = ((0..4096).map(|byte| byte as u8 ^ 0x5a).collect::<Vec<_>>(), vec![0; 4096]);
    let (region, window) = (register(&mut here, &mut ours), register(&mut there, &mut theirs));
    let remote = there.remote(&window);
    let mut overtaken = false;
    for round in 0..5u64 {
        for token in 0..64 {
            let more = token % 7 != 6;
            let immediate = Some(round as u32 * 64 + token as u32);
            let put = Transfer { immediate, more, ..transfer(token * 64, 64, remote, token) };
            // SAFETY: no other code accesses the memory until the completion.
            assert_eq!(unsafe { here.write(&region, &put) }.unwrap(), Post::Accepted);
        }
        // SAFETY: the write is refused.
        let one_more = unsafe { here.write(&region, &transfer(0, 1, remote, 0)) };
        assert_eq!(one_more.unwrap(), Post::Again, "the queue is full");
        let mut done = tokens(&poll(&mut here, 64));
        overtaken |= !done.is_sorted();
        done.sort_unstable();
        assert_eq!(done, (0..64).collect::<Vec<_>>());
        let mut values: Vec<u32> = poll(&mut there, 64)
            .iter()
            .map(|completion| match completion {
                Completion::Immediate { value } => *value,
                other => panic!("{other:?}"),
            })
            .collect();
        values.sort_unstable();
        assert_eq!(values, (0..64).map(|token| round as u32 * 64 + token).collect::<Vec<_>>());
    }
    assert!(overtaken, "nothing is in order");
    assert_eq!(theirs, ours);
    // Reads the bytes back.
    theirs.reverse();
    for token in 0..8 {
        // SAFETY: no other code accesses the memory until the completion.
        assert_eq!(unsafe { here.read(&region, &transfer(token * 512, 512, remote, token)) }.unwrap(), Post::Accepted);
    }
    poll(&mut here, 8);
    assert_eq!(theirs, ours);
}

/// Messages of up to four MTUs over NICs that reorder: each arrives in the oldest receive, from two senders at a time.
#[test]
fn messages_arrive_in_order_over_reordering_nics() {
    const SIZES: [usize; 6] = [2, 1, 8928, 8929, 30_000, 64];
    let with_messages = |card: usize| VerbsRail::with_messages(&names()[card], 64, Some(32)).unwrap();
    let (mut senders, mut there) = ([with_messages(0), with_messages(0)], with_messages(1));
    for sender in &mut senders {
        sender.add_peer(&there.address().unwrap()).unwrap();
        there.add_peer(&sender.address().unwrap()).unwrap();
    }
    let count = 120u64;
    let size = |number: u64| SIZES[number as usize % SIZES.len()];
    let mut ours: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; size(number).max(1)]).collect();
    let mut theirs = vec![vec![0xffu8; 30_001]; 2 * count as usize];
    let message = |bytes: usize, token: u64| Message { offset: 0, bytes: bytes as u64, token };
    let into: Vec<_> = theirs.iter_mut().map(|bytes| register(&mut there, bytes)).collect();
    let mut from: [Vec<_>; 2] = [Vec::new(), Vec::new()];
    for (sender, regions) in senders.iter_mut().zip(&mut from) {
        regions.extend(ours.iter_mut().map(|bytes| register(sender, bytes)));
    }
    // Half of the receives are posted after messages have landed.
    let receives = |there: &mut VerbsRail, numbers: std::ops::Range<u64>| {
        for number in numbers {
            // SAFETY: no other code accesses the memory until the completion.
            unsafe { there.receive(&into[number as usize], &message(30_001, number)) }.unwrap();
        }
    };
    receives(&mut there, 0..count);
    let (mut sent, mut done, mut received, mut late) = ([0u64; 2], 0, Vec::new(), false);
    let started = Instant::now();
    while received.len() < 2 * count as usize || done < 2 * count {
        for (index, sender) in senders.iter_mut().enumerate() {
            let number = sent[index];
            if number < count {
                let message = message(size(number), number);
                // SAFETY: no other code accesses the memory until the completion.
                let posted = unsafe { sender.send(&from[index][number as usize], 0, &message) }.unwrap();
                sent[index] += u64::from(posted == Post::Accepted);
            }
            let mut found = Vec::new();
            sender.poll(&mut found).unwrap();
            done += tokens(&found).len() as u64;
        }
        let mut found = Vec::new();
        there.poll(&mut found).unwrap();
        received.extend(found.into_iter().map(|completion| match completion {
            Completion::Received { token, bytes } => (token, bytes),
            other => panic!("{other:?}"),
        }));
        if sent == [count; 2] && !late {
            late = true;
            receives(&mut there, count..2 * count);
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{sent:?} {done} {}", received.len());
        std::thread::yield_now();
    }
    // The messages of each sender are in order. Both send the same.
    received.sort_unstable();
    let mut next = [0u64; 2];
    for (token, bytes) in received {
        let contents = &theirs[token as usize];
        let fits = |number: u64| {
            number < count
                && size(number) as u64 == bytes
                && contents[..bytes as usize].iter().all(|byte| *byte == number as u8)
                && contents[bytes as usize..].iter().all(|byte| *byte == 0xff)
        };
        let index = next.iter().position(|number| fits(*number)).unwrap_or_else(|| panic!("{token}: {bytes} B"));
        next[index] += 1;
        next.sort_unstable();
    }
    assert_eq!(next, [count; 2]);
}

/// More messages than landing slots arrive before their receives, and with them a message in two segments.
#[test]
fn messages_without_receives_block_no_other_message() {
    const COUNT: u64 = 1200;
    const LONG: usize = 8929;
    let with_messages = |card: usize| VerbsRail::with_messages(&names()[card], 64, Some(32)).unwrap();
    let (mut here, mut there) = (with_messages(0), with_messages(1));
    here.add_peer(&there.address().unwrap()).unwrap();
    there.add_peer(&here.address().unwrap()).unwrap();
    let mut ours: Vec<u8> = (0..COUNT).map(|number| number as u8).chain(vec![7; LONG]).collect();
    let mut theirs = vec![0xffu8; COUNT as usize + LONG];
    let (from, into) = (register(&mut here, &mut ours), register(&mut there, &mut theirs));
    let message =
        |number: u64| Message { offset: number, bytes: if number == COUNT { LONG as u64 } else { 1 }, token: number };
    let (mut sent, mut done, mut found) = (0, Vec::new(), Vec::new());
    let started = Instant::now();
    while done.len() as u64 <= COUNT {
        // SAFETY: here and below, no other code accesses the memory until the completion.
        if sent <= COUNT && unsafe { here.send(&from, 0, &message(sent)) }.unwrap() == Post::Accepted {
            sent += 1;
        }
        here.poll(&mut done).unwrap();
        there.poll(&mut found).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{sent} sent, {} complete", done.len());
        std::thread::yield_now();
    }
    assert!(found.is_empty(), "{found:?}");
    for number in 0..=COUNT {
        // SAFETY: see above.
        unsafe { there.receive(&into, &message(number)) }.unwrap();
    }
    assert_eq!(poll(&mut there, COUNT as usize + 1).len() as u64, COUNT + 1);
    assert_eq!(theirs, ours);
}

#[test]
fn message_errors_are_named() {
    let with_messages = |card: usize| VerbsRail::with_messages(&names()[card], 64, None).unwrap();
    let (mut here, mut there, mut without) = (with_messages(0), with_messages(1), open(0));
    here.add_peer(&there.address().unwrap()).unwrap();
    there.add_peer(&here.address().unwrap()).unwrap();
    let (mut ours, mut theirs, mut more) = (vec![1; 64], vec![0; 64], vec![0; 64]);
    let (from, into, other) =
        (register(&mut here, &mut ours), register(&mut there, &mut theirs), register(&mut without, &mut more));
    let message = |offset: u64, bytes: u64, token: u64| Message { offset, bytes, token };
    // SAFETY: no other code accesses the memory until the completion, and refused messages are not sent.
    unsafe {
        there.receive(&into, &message(0, 10, 4)).unwrap();
        here.send(&from, 0, &message(0, 11, 1)).unwrap();
        let error = failure(poll(&mut there, 1)).to_string();
        assert!(error.contains("a message of 11 B does not fit in the receive buffer of 10 B"), "{error}");
        assert_eq!((theirs[9], theirs[10]), (1, 0));
        there.receive(&into, &message(0, 10, 5)).unwrap();
        there.cancel(5).unwrap();
        there.cancel(6).unwrap();
        let error = failure(poll(&mut there, 1)).to_string();
        assert!(error.contains("the receive was cancelled"), "{error}");
        for (refused, what) in [
            (here.send(&from, 0, &message(60, 8, 1)), "exceed the region of 64 B"),
            (here.send(&from, 7, &message(0, 8, 1)), "no such peer"),
            (here.send(&other, 0, &message(0, 8, 1)), "registered with another rail"),
            (without.receive(&other, &message(0, 8, 1)), "messages"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}

#[test]
fn rejected_transfers_are_named() {
    let (mut here, mut there) = (open(0), open(1));
    here.add_peer(&there.address().unwrap()).unwrap();
    let (mut ours, mut theirs) = (vec![1; 64], vec![0; 64]);
    let (region, window) = (register(&mut here, &mut ours), register(&mut there, &mut theirs));
    let remote = there.remote(&window);
    let write = |rail: &mut VerbsRail, put: &Transfer| {
        // SAFETY: no other code accesses the memory until the completion.
        unsafe { rail.write(&region, put) }.map(|_| failure(poll(rail, 1)))
    };
    // Other tests of this process have handles of the same NICs, so a NIC without any handle of the peer is not tested
    // here.
    there.add_peer(&here.address().unwrap()).unwrap();
    let bad = RemoteRegion { key: remote.key ^ 1, ..remote };
    let error = write(&mut here, &transfer(0, 8, bad, 1)).unwrap();
    assert_eq!(error.code, 7);
    let text = error.to_string();
    assert!(
        text.contains("efa-verbs/soft:fast:rdmap79s0: write of 8 B to peer 0 failed: bad-remote-address: "),
        "{text}"
    );
    assert_eq!(theirs, vec![0; 64]);
    // Errors that are detected before the NIC receives the request.
    for (put, what) in [
        (transfer(60, 8, remote, 1), "exceed the local region"),
        (Transfer { remote_offset: 60, ..transfer(0, 8, remote, 1) }, "exceed the peer's region"),
        (Transfer { peer: 3, ..transfer(0, 8, remote, 1) }, "no such peer: there are"),
        (transfer(0, 0, remote, 1), "neither bytes nor an immediate"),
    ] {
        // SAFETY: the write is refused.
        let error = unsafe { here.write(&region, &put) }.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    here.remove_peer(0).unwrap();
    // SAFETY: the write is refused.
    assert!(unsafe { here.write(&region, &transfer(0, 8, remote, 1)) }.is_err());
    assert!(here.remove_peer(0).is_err() && here.add_peer(&[0; 7]).is_err());
    assert!(VerbsRail::open("rdmap1s0", 64, None).unwrap_err().to_string().contains("available: rdmap79s0, rdmap80s0"));
}

/// A CPU cannot access GPU memory, regardless of the driver's exports. Neither the driver nor the NIC is called.
#[test]
fn software_nics_reject_gpu_memory_by_name() {
    let mut rail = open(0);
    let bytes = [0u8; 64];
    let memory = MemoryRange { address: bytes.as_ptr().expose_provenance() as u64, bytes: 64, cuda_device: Some(0) };
    // SAFETY: the registration is refused.
    let error = unsafe { rail.register(memory, Access::ALL) }.unwrap_err().to_string();
    assert!(error.contains("registering 64 B of CUDA device 0 failed: software NICs move bytes by the CPU"), "{error}");
    assert!(error.contains("cannot register a dma-buf; stage through pinned") && !error.contains('\n'), "{error}");
    assert!(!rail.limits().cuda_memory);
    let place = RankPlace::alone(0, Reach::SameHost);
    let fabric = Fabric::named(Some("efa-verbs/soft:fast,seed=5,reorder=9,cards=2"), &[]).unwrap();
    let mut chosen = fabric.choose(1, &place, RailOptions::default()).unwrap();
    // SAFETY: the registration is refused.
    let error = unsafe { chosen.prove_gpu(memory) }.unwrap_err();
    assert!(error.contains("software NICs move bytes by the CPU"), "{error}");
}

/// Emulates a kernel: stores words to the ring and a count to the doorbell, and polls the phase of the completion and
/// the counter of the other side.
#[test]
fn view_suffices_to_drive_queue_pair() {
    let (first, second) = (Verbs::open(&names()[0]).unwrap(), Verbs::open(&names()[1]).unwrap());
    let options =
        |counted| PairOptions { depth: 32, completions: 32, arrivals: 64, receives: 1, unsolicited: true, counted };
    let (here, there) = (
        first.pair(&options(&[CountedEvent::Writes])).unwrap(),
        second.pair(&options(&[CountedEvent::RemoteWrites])).unwrap(),
    );
    let to = first.handle(&there.address()).unwrap();
    second.handle(&here.address()).unwrap();
    let (mut ours, mut theirs) = ([9u8; 64], [0u8; 64]);
    let memory = |bytes: &mut [u8]| MemoryRange {
        address: bytes.as_mut_ptr().expose_provenance() as u64,
        bytes: 64,
        cuda_device: None,
    };
    // SAFETY: the memory outlives the regions.
    let (from, window) = unsafe {
        (
            first.register(memory(&mut ours), Access::SOURCE).unwrap(),
            second.register(memory(&mut theirs), Access::REMOTE_WRITE).unwrap(),
        )
    };
    let view = here.view();
    let within = |start: *mut u8, bytes: usize| {
        let inside = |all: &ginlab_fabric::verbs::Mapping| {
            start >= all.start && start.addr() + bytes <= all.start.addr() + all.bytes
        };
        here.mappings().iter().any(inside)
    };
    assert!(
        within(view.send.slots, 32 * 64)
            && within(view.send.doorbell.cast(), 4)
            && within(view.completions.slots, 32 * 32)
    );
    assert!(
        within(here.counter(CountedEvent::Writes).unwrap().cast_mut().cast(), 8)
            && here.counter(CountedEvent::Reads).is_none()
    );
    assert!(here.mappings().iter().all(|all| all.start.addr() % 4096 == 0 && all.bytes % 4096 == 0 && !all.is_card));
    // Completion queues are mapped read-only, and memory that no kernel uses is omitted.
    let read_only: Vec<_> = here.mappings().into_iter().filter(|all| all.is_read_only).map(|all| all.start).collect();
    let mut queues = [view.completions.slots, view.arrivals.slots];
    queues.sort_unstable();
    assert_eq!(read_only, queues);
    assert!(!within(view.receive.slots, 1) && !within(view.receive.doorbell.cast(), 4));
    for number in 0..40u64 {
        let head = efa_queue::request::Head {
            id: number,
            phase: rules::send_phase(number, view.send.entries),
            to,
            immediate: None,
            hints: 0,
        };
        let local = efa_queue::Local { address: from.address, length: 64, key: from.lkey };
        let words = efa_queue::request::write(&head, local, window.address, window.rkey);
        let slot = rules::slot(number, view.send.entries) as usize;
        // SAFETY: the addresses are in the ring and the queue that the view describes.
        unsafe {
            let places = &*view.send.slots.add(slot * 64).cast::<[AtomicU64; 8]>();
            places.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
            (*view.send.doorbell.cast::<AtomicU32>()).store(rules::doorbell(number + 1), Ordering::Release);
            let slot = rules::slot(number, view.completions.entries) as usize;
            let first = &*view.completions.slots.add(slot * view.completions.entry_bytes as usize).cast::<AtomicU64>();
            let started = Instant::now();
            while completion::phase(first.load(Ordering::Acquire))
                != rules::completion_phase(number, view.completions.entries)
            {
                assert!(started.elapsed() < Duration::from_secs(20));
                std::thread::yield_now();
            }
            assert_eq!(
                (
                    completion::id(first.load(Ordering::Relaxed)).into(),
                    completion::status(first.load(Ordering::Relaxed))
                ),
                (number, 0)
            );
        }
    }
    let counted = |place: *const u64| {
        // SAFETY: the word is in a page that lives as long as its pair.
        unsafe { &*place.cast::<AtomicU64>() }.load(Ordering::Acquire)
    };
    let started = Instant::now();
    while counted(there.counter(CountedEvent::RemoteWrites).unwrap()) < 40 {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert_eq!((counted(here.counter(CountedEvent::Writes).unwrap()), theirs), (40, ours));
    drop((here, there));
}
