//! Both types over software NICs: libfabric's own EFA provider with simulated devices below it (crates/soft_efa).
//!
//! The simulated devices must be loaded into the process before libfabric, but the plugin is loaded by another program.
//! `ginlab nccl` makes the loader preload them, and these tests do the same with their own process.

use crate::again::alone;
use ginlab_fabric::soft;
use nccl_ginlab::abi::PTR_CUDA;
use nccl_ginlab::settings::{COUNT, RAILS, RULE, STRATEGY};

/// Two devices without modelled times.
const CARDS: &str = "soft-efa:fast,cards=2";

fn with_cards(name: &str, test: impl FnOnce()) {
    if ginlab_fabric::libfabric::require_library().is_err() {
        eprintln!("skipped: no libfabric");
        return;
    }
    // Small pools, since many endpoints share this machine.
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
