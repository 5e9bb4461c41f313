//! Jobs of many ranks and gathers of many bytes. `host/bootstrap/examples/scale.rs` measures thousands of ranks.

use super::{LONG, TOKEN, listener, options, ranks};
use ginlab::bootstrap::Bootstrap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

const RANKS: usize = 64;

/// Forwards one connection to `to`, and counts the bytes that come back.
fn counted(to: SocketAddr, count: &'static AtomicU64) -> SocketAddr {
    let (listener, address) = listener();
    std::thread::spawn(move || {
        let (mut rank, mut first) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let (mut from, mut back) = (rank.try_clone().unwrap(), first.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut back));
        let mut chunk = [0; 4096];
        while let Ok(bytes @ 1..) = first.read(&mut chunk) {
            count.fetch_add(bytes as u64, Ordering::Relaxed);
            if rank.write_all(&chunk[..bytes]).is_err() {
                break;
            }
        }
    });
    address
}

/// The answers of rank 0 contain no table of all ranks, unless the ranks' parts differ and all ranks need them.
#[test]
fn sixty_four_ranks_receive_short_answers() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    /// Answers to a step, without the parts: frame, label, run headers and encryption.
    const FRAME: u64 = 256;
    let (listener, address) = listener();
    let through = counted(address, &COUNT);
    let body = |mut ranks: Bootstrap| {
        let (rank, mut received) = (ranks.rank(), Vec::new());
        let mut note = |ranks: &mut Bootstrap, step: &dyn Fn(&mut Bootstrap)| {
            let before = COUNT.load(Ordering::Relaxed);
            step(ranks);
            received.push(COUNT.load(Ordering::Relaxed) - before);
        };
        note(&mut ranks, &|ranks| ranks.barrier("barrier").unwrap());
        note(&mut ranks, &|ranks| {
            let all = ranks.gather_values(&vec![rank as u8; 10_000], "findings").unwrap();
            assert_eq!(all.map(|all| all[63][9999]), (rank == 0).then_some(63));
        });
        note(&mut ranks, &|ranks| assert_eq!(ranks.value_of_first(&rank, "clock").unwrap(), 0));
        note(&mut ranks, &|ranks| {
            let equal = ranks.all_gather_values(&vec![true; 1000], "rails").unwrap();
            assert_eq!(equal, vec![vec![true; 1000]; RANKS]);
        });
        note(&mut ranks, &|ranks| {
            assert_eq!(ranks.all_gather_values(&rank, "ranks").unwrap(), (0..RANKS).collect::<Vec<_>>());
        });
        assert_eq!(ranks.members()[rank].pid, std::process::id());
        ranks.finish().unwrap();
        received
    };
    let received = std::thread::scope(|scope| {
        let join = |rank| {
            let address = if rank == RANKS - 1 { through } else { address };
            body(Bootstrap::join(&[address], rank, RANKS, TOKEN, options(LONG)).unwrap())
        };
        let others: Vec<_> = (1..RANKS).map(|rank| scope.spawn(move || join(rank))).collect();
        body(Bootstrap::serve(listener, RANKS, TOKEN, options(LONG)).unwrap());
        others.into_iter().map(|other| other.join().unwrap()).next_back().unwrap()
    });
    let [barrier, findings, clock, rails, numbers] = received[..] else { panic!("{received:?}") };
    assert!(barrier < FRAME && findings < FRAME && clock < FRAME, "{received:?}");
    assert!(rails < FRAME + 1002, "{received:?}");
    assert!(numbers < FRAME + 2 * RANKS as u64, "{received:?}");
}

#[test]
fn gather_larger_than_one_message_succeeds() {
    // Each of nine ranks sends a million raw times, 72 MB in total. One message has at most 64 MiB.
    let lengths = ranks(9, &options(LONG), |mut ranks| {
        let times = vec![0.1 + ranks.rank() as f64; 1_000_000];
        let all = ranks.gather_values(&times, "times of a row").unwrap();
        ranks.finish().unwrap();
        all.map(|all| all.iter().map(|times| (times.len(), times[999_999])).collect::<Vec<_>>())
    });
    let expected: Vec<_> = (0..9).map(|rank| (1_000_000, 0.1 + f64::from(rank))).collect();
    assert_eq!(lengths[0], Some(expected));
    assert!(lengths[1..].iter().all(Option::is_none));
}
