//! The star topology with threads as ranks, over loopback: successful runs, and the message of every failure on every
//! rank.

#![allow(clippy::unwrap_used)]

#[path = "bootstrap/partial.rs"]
mod partial;
#[path = "bootstrap/progress.rs"]
mod progress;
#[path = "bootstrap/scale.rs"]
mod scale;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ginlab::bootstrap::{Bootstrap, BootstrapError, BootstrapKind, BootstrapOptions, FailureKind};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};

const TOKEN: &str = "a secret";

/// Timeout that is longer than any wait in these tests, unless a test hangs.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

fn options(timeout: Duration) -> BootstrapOptions {
    let interrupt: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    BootstrapOptions { timeout, interrupt, ..BootstrapOptions::default() }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns an address that no process listens on, and the socket that reserves it.
fn deaf() -> (OwnedFd, SocketAddr) {
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let name: SockaddrIn = socket::getsockname(socket.as_raw_fd()).unwrap();
    (socket, SocketAddr::new(name.ip().into(), name.port()))
}

/// Opens a star of `size` threads and runs `body` on each. Returns the results by rank.
fn ranks<T: Send>(size: usize, options: &BootstrapOptions, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let (listener, address) = listener();
    let body = &body;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..size)
            .map(|rank| {
                let options = options.clone();
                scope.spawn(move || body(Bootstrap::join(&[address], rank, size, TOKEN, options).unwrap()))
            })
            .collect();
        let first = body(Bootstrap::serve(listener, size, TOKEN, options.clone()).unwrap());
        std::iter::once(first).chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

/// Runs rank 0 of a star of `size` ranks while `others` connects to this rank. Returns the outcome of rank 0.
fn joining(
    size: usize,
    timeout: Duration,
    others: impl Fn(SocketAddr) + Sync + Send,
) -> Result<Bootstrap, BootstrapError> {
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        scope.spawn(|| others(address));
        Bootstrap::serve(listener, size, TOKEN, options(timeout))
    })
}

#[track_caller]
fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

#[test]
fn gathers_and_barriers() {
    for size in [1, 2, 3, 8] {
        let seen = ranks(size, &options(LONG), |mut ranks| {
            assert_eq!((ranks.size(), ranks.kind(), ranks.same_host()), (size, BootstrapKind::Tcp, true));
            assert_eq!((ranks.local_rank(), ranks.local_size()), (ranks.rank(), size));
            let uneven = vec![ranks.rank() as u8; ranks.rank() * 1000];
            let all = ranks.all_gather(&uneven, "uneven").unwrap();
            ranks.barrier("between").unwrap();
            let empty = ranks.all_gather(&[], "empty").unwrap();
            let large = ranks.all_gather(&vec![ranks.rank() as u8; 1 << 20], "large").unwrap();
            ranks.check_peers().unwrap();
            let rank = ranks.rank();
            ranks.finish().unwrap();
            (rank, all, empty, large)
        });
        for (expected, (rank, all, empty, large)) in seen.into_iter().enumerate() {
            assert_eq!(rank, expected);
            assert_eq!(all, (0..size).map(|rank| vec![rank as u8; rank * 1000]).collect::<Vec<_>>());
            assert_eq!(empty, vec![Vec::<u8>::new(); size]);
            assert_eq!(large, (0..size).map(|rank| vec![rank as u8; 1 << 20]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn many_steps_stay_in_step() {
    ranks(3, &options(LONG), |mut ranks| {
        for step in 0..500u32 {
            let all = ranks.all_gather(&step.to_le_bytes(), &format!("step {step}")).unwrap();
            assert!(all.iter().all(|one| *one == step.to_le_bytes()));
        }
    });
}

#[test]
fn wrong_token_is_rejected_without_blocking_valid_rank() {
    let outcome = joining(2, LONG, |address| {
        let wrong = Bootstrap::join(&[address], 1, 2, "another secret", options(LONG)).err().unwrap().to_string();
        contains(
            &wrong,
            &format!("rank 0 at {address} refused rank 1: it has a different job token; set GINLAB_TOKEN"),
        );
        Bootstrap::join(&[address], 1, 2, TOKEN, options(LONG)).unwrap();
    });
    assert_eq!(outcome.unwrap().size(), 2);
}

#[test]
fn token_selects_correct_address() {
    let (_nobody, closed) = deaf();
    let (wrong, other_job) = listener();
    let (right, address) = listener();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Bootstrap::serve(wrong, 2, "another secret", options(Duration::from_secs(2))));
        let first = scope.spawn(|| Bootstrap::serve(right, 2, TOKEN, options(LONG)));
        let joined = Bootstrap::join(&[closed, other_job, address], 1, 2, TOKEN, options(LONG));
        assert_eq!(joined.unwrap().rank(), 1);
        assert_eq!(first.join().unwrap().unwrap().rank(), 0);
        let text = other.join().unwrap().err().unwrap().to_string();
        contains(&text, "waiting for rank 1 at \"start\" (arrived: 0); refused one connection: 127.0.0.1:");
    });
}

#[test]
fn unauthenticated_connections_do_not_disturb_job() {
    let outcome = joining(2, LONG, |address| {
        let mut scanner = TcpStream::connect(address).unwrap();
        scanner.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // The scanner receives no answer; its connection is closed.
        assert_eq!(scanner.read(&mut [0; 64]).unwrap_or(0), 0);
        let _silent = TcpStream::connect(address).unwrap();
        drop(TcpStream::connect(address).unwrap());
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"ginl").unwrap();
        Bootstrap::join(&[address], 1, 2, TOKEN, options(LONG)).unwrap();
    });
    assert_eq!(outcome.unwrap().size(), 2);
}

#[test]
fn invalid_rank_fails_on_both_sides() {
    for (rank, size, why) in [
        (7, 2, "its rank must be from 1 to 1"),
        (0, 2, "its rank must be from 1 to 1"),
        (1, 3, "its number of ranks is 3, that of rank 0 is 2"),
    ] {
        let outcome = joining(2, LONG, |address| {
            let refused = Bootstrap::join(&[address], rank, size, TOKEN, options(LONG)).err().unwrap();
            contains(&refused.to_string(), why);
        });
        let text = outcome.err().unwrap().to_string();
        contains(&text, &format!("rank {rank} (host "));
        contains(&text, why);
    }
}

#[test]
fn duplicate_rank_is_rejected() {
    let outcome = joining(3, LONG, |address| {
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| Bootstrap::join(&[address], 1, 3, TOKEN, options(LONG))));
            for one in both {
                contains(&one.join().unwrap().err().unwrap().to_string(), "two processes claim rank 1, on host ");
            }
        });
    });
    contains(&outcome.err().unwrap().to_string(), "cannot join: two processes claim rank 1");
}

#[test]
fn missing_rank_is_named_on_every_rank() {
    let began = Instant::now();
    let outcome = joining(4, SHORT, |address| {
        let text = Bootstrap::join(&[address], 2, 4, TOKEN, options(SHORT)).err().unwrap().to_string();
        contains(&text, "waiting for ranks 1, 3 at \"start\" (arrived: 0, 2)");
    });
    let error = outcome.err().unwrap();
    assert_eq!(error.to_string(), "timed out after 300 ms waiting for ranks 1, 3 at \"start\" (arrived: 0, 2)");
    assert_eq!(error.ending(), FailureKind::TimedOut);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn missing_rank_0_times_out() {
    let (_nobody, address) = deaf();
    let error = Bootstrap::join(&[address], 1, 2, TOKEN, options(SHORT)).err().unwrap();
    let text = error.to_string();
    contains(&text, &format!("timed out after 300 ms connecting rank 1 to rank 0 at {address} (last attempt: "));
    contains(&text, "refused");
    assert_eq!(error.ending(), FailureKind::TimedOut);
}

#[test]
fn rank_missing_from_barrier_is_named() {
    let all_done = Barrier::new(3);
    let texts = ranks(3, &options(LONG), |mut ranks| {
        ranks.set_timeout(SHORT);
        let text = match ranks.rank() {
            2 => String::new(),
            _ => ranks.barrier("row 4 barrier").unwrap_err().to_string(),
        };
        all_done.wait();
        text
    });
    assert_eq!(texts[0], "timed out after 300 ms waiting for rank 2 at \"row 4 barrier\" (arrived: 0, 1)");
    contains(&texts[1], &texts[0]);
}

#[test]
fn rank_0_missing_from_barrier_is_named() {
    let all_done = Barrier::new(2);
    let texts = ranks(2, &options(LONG), |mut ranks| {
        ranks.set_timeout(SHORT);
        let text = if ranks.rank() == 1 { ranks.barrier("row").unwrap_err().to_string() } else { String::new() };
        all_done.wait();
        text
    });
    contains(&texts[1], "timed out after 300 ms waiting for rank 0 at \"row\" (arrived: 1); rank 0 has not reached");
}

#[test]
fn leaving_rank_is_named_on_every_rank() {
    let pid = std::process::id();
    let texts = ranks(3, &options(LONG), |mut ranks| {
        if ranks.rank() == 1 {
            return String::new();
        }
        let error = ranks.barrier("row 2").unwrap_err();
        // All later calls return the first error.
        assert_eq!(ranks.check_peers(), Err(error.clone()));
        assert_eq!(ranks.all_gather(b"x", "later"), Err(error.clone()));
        error.to_string()
    });
    contains(&texts[0], "rank 1 (host ");
    contains(&texts[0], &format!(", pid {pid}) during \"row 2\""));
    contains(&texts[2], &texts[0]);
}

#[test]
fn check_of_peers_detects_left_rank() {
    let opened = Barrier::new(2);
    ranks(2, &options(LONG), |mut ranks| {
        if ranks.rank() == 1 {
            opened.wait();
            return;
        }
        assert_eq!(ranks.check_peers(), Ok(()));
        opened.wait();
        let began = Instant::now();
        let error = loop {
            match ranks.check_peers() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error,
            }
            assert!(began.elapsed() < LONG);
        };
        assert!(matches!(error, BootstrapError::Left { rank: 1, .. }), "{error}");
    });
}

#[test]
fn abort_reaches_all_ranks_with_its_kind() {
    let kinds = [FailureKind::Failed, FailureKind::TimedOut, FailureKind::Usage, FailureKind::Interrupted];
    for (origin, ending) in [0, 1, 2, 0].into_iter().zip(kinds) {
        let errors = ranks(3, &options(LONG), |mut ranks| {
            if ranks.rank() == origin {
                ranks.abort(ending, "rail 2 is down");
            }
            ranks.barrier("row 1").unwrap_err()
        });
        for error in errors {
            assert_eq!(error.to_string(), format!("rank {origin} stopped the job: rail 2 is down"));
            assert_eq!(error.ending(), ending);
        }
    }
}

#[test]
fn ranks_out_of_step_are_reported() {
    let texts = ranks(3, &options(LONG), |mut ranks| {
        let what = if ranks.rank() == 2 { "row 5" } else { "row 4" };
        ranks.barrier(what).unwrap_err().to_string()
    });
    contains(&texts[0], "ranks are out of step: rank 2 is at \"row 5\" (step 3), but rank 0 at \"row 4\" (step 3)");
    contains(&texts[1], &texts[0]);
    contains(&texts[2], &texts[0]);
}

#[test]
fn different_fingerprints_are_rejected() {
    let print =
        |provider: &str| vec![("rails".to_owned(), "4".to_owned()), ("provider".to_owned(), provider.to_owned())];
    let texts = ranks(3, &options(LONG), |mut ranks| {
        ranks.compare(print("tcp")).unwrap();
        let provider = if ranks.rank() == 1 { "efa" } else { "tcp" };
        ranks.compare(print(provider)).unwrap_err().to_string()
    });
    for text in texts {
        assert_eq!(text, "ranks differ: provider is \"tcp\" on rank 0 but \"efa\" on rank 1");
    }
}

#[test]
fn fingerprints_are_compared_at_start() {
    let with = |provider: &str| BootstrapOptions {
        fingerprint: vec![("provider".to_owned(), provider.to_owned())],
        ..options(LONG)
    };
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Bootstrap::join(&[address], 1, 2, TOKEN, with("efa")).err().unwrap());
        let first = Bootstrap::serve(listener, 2, TOKEN, with("tcp")).err().unwrap();
        assert_eq!(first.to_string(), "ranks differ: provider is \"tcp\" on rank 0 but \"efa\" on rank 1");
        assert_eq!(other.join().unwrap(), first);
    });
}

#[test]
fn interrupt_ends_wait_and_job() {
    let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let never: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let join = |rank| {
            let options = BootstrapOptions { interrupt: never, ..options(LONG) };
            Bootstrap::join(&[address], rank, 3, TOKEN, options).unwrap()
        };
        let one = scope.spawn(move || join(1).barrier("row").unwrap_err().to_string());
        let two = scope.spawn(move || {
            let mut ranks = join(2);
            // All ranks have joined. The others enter the barrier, and this rank never does.
            flag.store(true, Ordering::Relaxed);
            while ranks.check_peers().is_ok() {
                std::thread::yield_now();
            }
            ranks.check_peers().unwrap_err().to_string()
        });
        let outcome = Bootstrap::serve(listener, 3, TOKEN, BootstrapOptions { interrupt: flag, ..options(LONG) })
            .and_then(|mut ranks| ranks.barrier("row"));
        assert_eq!(outcome.unwrap_err().to_string(), "interrupted at \"row\"");
        assert_eq!(one.join().unwrap(), "rank 0 stopped the job: interrupted at \"row\"");
        assert_eq!(two.join().unwrap(), "rank 0 stopped the job: interrupted at \"row\"");
    });
}

#[test]
fn long_parts_arrive_complete() {
    // Tests several fragment lengths, with parts that are empty, shorter or longer than a fragment, or multiples of it.
    for piece_bytes in [0, 1, 7, 4096] {
        let options = BootstrapOptions { piece_bytes, ..options(LONG) };
        let part = |rank: usize| (0..[0, 5, 7, 29, 14][rank] * 3).map(|at| (at * 7 + rank) as u8).collect::<Vec<_>>();
        ranks(5, &options, |mut ranks| {
            let rank = ranks.rank();
            let all = ranks.all_gather(&part(rank), "bytes").unwrap();
            assert_eq!(all, (0..5).map(part).collect::<Vec<_>>());
            let mine: Vec<(f64, Option<u64>)> = part(rank).iter().map(|byte| (f64::from(*byte), None)).collect();
            let values = ranks.gather_values(&mine, "values").unwrap();
            assert_eq!(values.is_some(), rank == 0);
            let lengths = values.map(|values| values.iter().map(Vec::len).collect::<Vec<_>>());
            assert!(lengths.is_none_or(|lengths| lengths == [0, 15, 21, 87, 42]));
            assert_eq!(ranks.all_gather_values(&(rank, "x".to_owned()), "names").unwrap().len(), 5);
            ranks.finish().unwrap();
        });
    }
}

#[test]
fn values_of_wrong_type_are_rejected() {
    let texts = ranks(2, &options(LONG), |mut ranks| match ranks.rank() {
        0 => ranks.gather_values(&"text".to_owned(), "names").unwrap_err().to_string(),
        _ => ranks.gather_values(&255u8, "names").map(|none| format!("{none:?}")).unwrap(),
    });
    contains(&texts[0], "rank 1");
    assert_eq!(texts[1], "None");
}

#[test]
fn parts_are_limited_in_size() {
    let texts = ranks(2, &options(LONG), |mut ranks| {
        if ranks.rank() == 1 {
            let error = ranks.all_gather(&vec![0; (1 << 30) + 1], "table").unwrap_err();
            ranks.abort(error.ending(), &error.to_string());
            return error.to_string();
        }
        ranks.all_gather(&[], "table").unwrap_err().to_string()
    });
    assert_eq!(texts[1], "\"table\" needs 1073741825 bytes of one rank, but at most 1073741824 are allowed");
    contains(&texts[0], &texts[1]);
}

#[test]
fn invalid_job_sizes_are_rejected() {
    let (first, address) = listener();
    let error = Bootstrap::serve(first, 0, TOKEN, options(LONG)).err().unwrap();
    assert_eq!(error.to_string(), "invalid number of ranks 0: must be from 1 to 65536");
    for size in [0, usize::MAX] {
        let error = Bootstrap::join(&[address], 1, size, TOKEN, options(LONG)).err().unwrap();
        assert!(matches!(error, BootstrapError::BadSize { .. }), "{error}");
    }
    assert!(matches!(Bootstrap::local(0, options(LONG)), Err(BootstrapError::BadSize { .. })));
    let (second, _) = listener();
    assert_eq!(Bootstrap::serve(second, 2, "", options(LONG)).err(), Some(BootstrapError::NoToken));
}
