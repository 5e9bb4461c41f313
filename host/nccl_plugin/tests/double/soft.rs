//! Both types over cards in software: libfabric's own EFA provider, below it cards that are no hardware (crates/soft_efa).
//!
//! They must be in the process before libfabric is, and the plugin comes into a process of somebody else's: `ginlab nccl` has the loader bring
//! them, and so do these tests with a process of their own.

use crate::again::alone;
use ginlab_fabric::soft;
use nccl_ginlab::abi::PTR_CUDA;
use nccl_ginlab::settings::{COUNT, RAILS, RULE, STRATEGY};

/// Cards without times of their own, two of them.
const CARDS: &str = "soft-efa:fast,cards=2";

fn with_cards(name: &str, test: impl FnOnce()) {
    if ginlab_fabric::libfabric::require_library().is_err() {
        eprintln!("skipped: no libfabric");
        return;
    }
    // Small pools: many endpoints share this machine.
    let pools = ["FI_EFA_RX_SIZE", "FI_EFA_TX_SIZE"].map(|pool| (pool.to_owned(), "64".into()));
    alone(name, || soft::environment(CARDS).unwrap().into_iter().chain(pools).collect(), test);
}

#[test]
fn proxy() {
    with_cards("soft::proxy", || {
        for (rule, strategy) in [("count", "split"), ("own", "round-robin")] {
            crate::all_of(2, &[(RAILS, CARDS), (RULE, rule), (COUNT, "2"), (STRATEGY, strategy)], PTR_CUDA, 1);
        }
    });
}

#[test]
fn queues() {
    with_cards("soft::queues", || {
        for (rule, strategy) in [("count", "split"), ("own", "round-robin")] {
            crate::queues::all_of(2, &[(RAILS, CARDS), (RULE, rule), (COUNT, "2"), (STRATEGY, strategy)]);
        }
    });
}
