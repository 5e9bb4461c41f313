//! Jobs that continue without ranks that are missing.

use super::{LONG, SHORT, TOKEN, contains, listener, options, ranks};
use ginlab::bootstrap::{Bootstrap, BootstrapOptions, FailureKind};
use std::sync::Barrier;
use std::time::Duration;

fn partial(timeout: Duration) -> BootstrapOptions {
    BootstrapOptions { partial: true, ..options(timeout) }
}

#[test]
fn job_continues_without_rank_that_never_connects() {
    let limit = Duration::from_secs(1);
    let (listener, address) = listener();
    let job = |mut ranks: Bootstrap| {
        ranks.set_timeout(LONG);
        let all = ranks.all_gather_values(&ranks.rank(), "numbers").unwrap();
        let missing = ranks.missing().to_vec();
        let hosts = ranks.members().len();
        ranks.finish().unwrap();
        (all, missing, hosts)
    };
    // Rank 1 of 3 never connects, so that rank 2 becomes rank 1 of 2.
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| job(Bootstrap::join(&[address], 2, 3, TOKEN, partial(limit)).unwrap()));
        let first = job(Bootstrap::serve(listener, 3, TOKEN, partial(limit)).unwrap());
        (first, other.join().unwrap())
    });
    assert_eq!((&first.0, first.2), (&vec![0, 1], 2));
    assert_eq!((&second.0, second.2), (&vec![0, 1], 2));
    let missing = &first.1[0];
    assert_eq!((first.1.len(), missing.rank, missing.host.as_ref()), (1, 1, None));
    assert_eq!(missing.why, "it did not arrive at \"start\" within 1 s");
    assert_eq!((second.1[0].rank, second.1.len()), (1, 1));
}

#[test]
fn job_continues_without_rank_that_leaves_or_fails() {
    let results = ranks(4, &partial(LONG), |mut ranks| {
        match ranks.rank() {
            // Dropped: the connection closes.
            1 => return None,
            2 => {
                ranks.abort(FailureKind::Failed, "out of memory");
                return None;
            }
            _ => {}
        }
        // A part of several pieces.
        let long = vec![7u8; 3 << 20];
        let parts = ranks.all_gather(&long, "long parts").unwrap();
        assert!(parts.iter().all(|part| *part == long));
        let sum = ranks.gather_values(&ranks.rank(), "numbers").unwrap();
        let missing = ranks.missing().to_vec();
        assert_eq!((ranks.size(), ranks.members().len(), parts.len()), (2, 2, 2));
        ranks.finish().unwrap();
        Some((sum, missing))
    });
    let (sum, missing) = results[0].as_ref().unwrap();
    assert_eq!(sum.as_deref(), Some(&[0, 1][..]));
    let mut missing = missing.clone();
    missing.sort_by_key(|missing| missing.rank);
    assert_eq!(missing.iter().map(|missing| missing.rank).collect::<Vec<_>>(), [1, 2]);
    assert!(missing.iter().all(|missing| missing.host.is_some()), "{missing:?}");
    contains(&missing[0].why, "lost connection to rank 1");
    contains(&missing[1].why, "rank 2 stopped the job: out of memory");
    assert_eq!(results[3].as_ref().unwrap().1.len(), 2);
}

#[test]
fn job_ends_without_rank_once_it_needs_all() {
    let all_done = Barrier::new(3);
    let texts = ranks(3, &partial(LONG), |mut ranks| {
        ranks.set_partial(false);
        ranks.set_timeout(SHORT);
        let text = match ranks.rank() {
            2 => String::new(),
            _ => ranks.barrier("writes").unwrap_err().to_string(),
        };
        all_done.wait();
        text
    });
    contains(&texts[0], "waiting for rank 2 at \"writes\"");
}
