//! Options that differ between ranks.

use super::{emulated, met};
use ginlab::cores::Pin;
use ginlab::fabric::libfabric::Level;
use ginlab::gin::{Fabric, PePath, PutSignalRule, World, WorldOptions};
use ginlab::proxy::{ProxyFault, signal_order};
use ginlab::rails::strategy::Strategy;
use std::time::Duration;

/// Name of an option in errors, and a change of it.
type Change = (&'static str, fn(&mut WorldOptions));

/// Opens a world of two ranks, of which rank 1 has the options `theirs`. Returns the errors.
fn refusals(ours: &WorldOptions, theirs: &WorldOptions) -> Vec<Option<String>> {
    met(2, |mut ranks| {
        let options = if ranks.rank() == 1 { theirs } else { ours };
        let opened = World::open(&mut ranks, options).and_then(|world| world.close(&mut ranks));
        opened.err().map(|error| error.to_string())
    })
}

#[test]
fn differing_options_are_refused_by_name() {
    let changes: [Change; 12] = [
        ("heap", |options| options.heap_bytes *= 2),
        ("path", |options| options.path = PePath::NvLink),
        ("ranks of a node", |options| options.node_size = Some(1)),
        ("rails' fabric", |options| options.fabric = Fabric::Null),
        ("completion level", |options| options.level = Level::Transmit),
        ("rails", |options| options.rails = 1),
        ("strategy", |options| options.strategy = Strategy::RoundRobin),
        ("rule of signals", |options| options.rule = PutSignalRule::Proxies(signal_order::Rule::Drain)),
        ("proxy threads", |options| options.proxies = 2),
        ("timeout", |options| options.timeout += Duration::from_secs(1)),
        ("injected fault", |options| options.fault = Some(ProxyFault::Stop(1))),
        ("early signals", |options| options.early_signals = true),
    ];
    let ours = emulated(PePath::Rails);
    for (name, change) in changes {
        let mut theirs = ours.clone();
        change(&mut theirs);
        for text in refusals(&ours, &theirs) {
            let text = text.unwrap_or_default();
            assert!(text.starts_with(&format!("ranks differ: {name} is ")), "{name}: {text}");
        }
    }
}

#[test]
fn cores_and_ring_slots_may_differ() {
    let ours = emulated(PePath::Rails);
    let theirs = WorldOptions { pin: Pin::Off, ring_slots: 16, ..ours.clone() };
    assert_eq!(refusals(&ours, &theirs), [None, None]);
}
