//! Tests of the engine over rails that transfer bytes, have small limits and randomly refuse posts: each byte of each
//! put is transferred exactly once.

use super::put;
use crate::engine::{Engine, EngineError};
use ginlab_fabric::null::NullRail;
use ginlab_fabric::testing::faulty::{FaultyRail, RailFaults};
use ginlab_fabric::testing::layer::{Layer, Layered, Posting};
use ginlab_fabric::{Access, MemoryRange, Post, Rail, RailLimits, RemoteRegion};
use ginlab_rails::strategy::Strategy;
use proptest::prelude::{
    Just, ProptestConfig, Strategy as _, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the destination region in bytes.
const SPACE: u64 = 1 << 17;

/// Transfers posted on all rails of a test.
#[derive(Default)]
struct Ledger {
    /// Number of writes of each destination byte.
    written: Vec<u32>,
    /// Source offset minus destination offset of each byte, which must be that of the command.
    shift: Vec<i64>,
    transfers: usize,
    longest: u64,
}

/// Records the transfers of a rail, and refuses posts in a random sequence.
struct Ledgering {
    ledger: Rc<RefCell<Ledger>>,
    random: u64,
    again_of_16: u64,
}

type Ledgered = Layered<FaultyRail<NullRail>, Ledgering>;

impl Layer for Ledgering {
    fn before_post(&mut self, _: Posting<'_>) -> Post {
        // Xorshift; any sequence that depends only on the test's input suffices.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if (self.random >> 20) % 16 < self.again_of_16 { Post::Again } else { Post::Accepted }
    }

    fn after_post(&mut self, posting: Posting<'_>) {
        let (Posting::Write(transfer) | Posting::Read(transfer)) = posting else { return };
        let mut ledger = self.ledger.borrow_mut();
        ledger.transfers += 1;
        ledger.longest = ledger.longest.max(transfer.bytes);
        for byte in transfer.remote_offset..transfer.remote_offset + transfer.bytes {
            ledger.written[byte as usize] += 1;
            ledger.shift[byte as usize] = transfer.local_offset as i64 - transfer.remote_offset as i64;
        }
    }
}

/// Transfer limit of the rails, number of refused posts out of 16, delay in polls, and random seed.
type RailBehaviour = (u64, u64, u64, u64);

fn engine(rails: usize, window: usize, weather: RailBehaviour) -> (Engine<Ledgered>, Rc<RefCell<Ledger>>) {
    let (longest, again_of_16, delay_polls, random) = weather;
    let ledger = Rc::new(RefCell::new(Ledger {
        written: vec![0; SPACE as usize],
        shift: vec![0; SPACE as usize],
        ..Ledger::default()
    }));
    let open = |number: usize| {
        let faults =
            RailFaults { delay_polls: delay_polls * number as u64, reverse: number % 2 == 1, ..Default::default() };
        let mut inner = FaultyRail::new(NullRail::new(), faults);
        inner.insert_peers(&[Vec::new()]).unwrap();
        let limits = RailLimits { max_transfer_bytes: longest, ..inner.limits().clone() };
        let random = random.wrapping_add(number as u64) | 1;
        Layered::over(inner, Ledgering { ledger: ledger.clone(), random, again_of_16 }).with_limits(limits)
    };
    let mut engine = Engine::new((0..rails).map(open).collect(), window, TIMEOUT);
    // SAFETY: null rails do not access the memory.
    let memory = |bytes| MemoryRange { address: 0, bytes, cuda_device: None };
    // SAFETY: null rails do not access the memory.
    let source = unsafe { engine.register(memory(2 * SPACE as usize), Access::ALL, None) }.unwrap();
    // SAFETY: null rails do not access the memory.
    let destination = unsafe { engine.register(memory(SPACE as usize), Access::ALL, None) }.unwrap();
    engine.set_peers(&[vec![source, destination]]).unwrap();
    (engine, ledger)
}

fn strategies() -> impl proptest::strategy::Strategy<Value = Strategy> {
    prop_oneof![
        Just(Strategy::Single),
        Just(Strategy::Split),
        Just(Strategy::RoundRobin),
        (0u64..1 << 15).prop_map(|threshold| Strategy::Auto { threshold }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_byte_is_posted_exactly_once(
        strategy in strategies(), rails in 1usize..6, used in 1usize..6, log2_window in 1u32..8,
        weather in (1u64..20_000, 0u64..14, 0u64..5, any::<u64>()), shift in 0..SPACE,
        // Adjacent puts with gaps between them.
        puts in prop::collection::vec((0u64..200, prop_oneof![0u64..40, 0u64..9000]), 1..40),
    ) {
        // Pieces of one byte would make the test slow without covering more than pieces of 16 bytes.
        let weather = (weather.0.max(16), weather.1, weather.2, weather.3);
        let (mut engine, ledger) = engine(rails, 1 << log2_window, weather);
        engine.configure(used, strategy);
        let mut commands = Vec::new();
        let mut expected = vec![0; SPACE as usize];
        let mut end = 0;
        for (hole, bytes) in puts {
            if end + hole + bytes > SPACE {
                break;
            }
            let start = end + hole;
            end = start + bytes;
            commands.push(put(start + shift, start, bytes));
            expected[start as usize..end as usize].fill(1);
        }
        let mut submitted = 0;
        let mut watermark = 0;
        for turn in 0.. {
            prop_assert!(turn < 1_000_000, "{}", engine.state());
            while submitted < commands.len() && engine.room() > 0 {
                prop_assert_eq!(engine.submit(&commands[submitted]).unwrap(), submitted as u64);
                submitted += 1;
            }
            engine.pump(&mut ()).unwrap();
            engine.progress(&mut ()).unwrap();
            prop_assert!(engine.watermark() >= watermark);
            watermark = engine.watermark();
            // The last command below the watermark has been written.
            if let Some(last) = (watermark as usize).checked_sub(1) {
                let start = commands[last].destination_offset as usize;
                let written = &ledger.borrow().written[start..start + commands[last].bytes as usize];
                prop_assert!(written.iter().all(|&count| count == 1));
            }
            if submitted == commands.len() && engine.in_flight() == 0 {
                break;
            }
        }
        let ledger = ledger.borrow();
        prop_assert_eq!(&ledger.written, &expected);
        prop_assert!(ledger.longest <= weather.0);
        prop_assert!((0..end as usize).all(|byte| expected[byte] == 0 || ledger.shift[byte] == shift as i64));
        prop_assert_eq!((engine.posted(), engine.watermark()), (0, commands.len() as u64));
        let counters = engine.counters();
        prop_assert_eq!(counters.rail_bytes.iter().sum::<u64>(), expected.iter().map(|&count| count as u64).sum::<u64>());
        prop_assert!(counters.rail_bytes[used.min(rails)..].iter().all(|&bytes| bytes == 0));
    }
}

#[test]
fn peers_with_uneven_regions_are_refused() {
    let (mut engine, _) = engine(2, 8, (1 << 16, 0, 0, 1));
    let region = RemoteRegion::default();
    for peers in [vec![vec![vec![region]]], vec![vec![vec![region; 2]], vec![]]] {
        assert!(matches!(engine.set_peers(&peers), Err(EngineError::Refused(_))));
    }
    assert!(engine.set_peers(&[vec![vec![region; 2]]]).is_ok());
}

#[test]
fn stall_is_reported_only_with_outstanding_transfers() {
    let (mut engine, _) = engine(1, 8, (1 << 16, 16, 0, 1));
    assert_eq!(engine.check_stall(), Ok(()));
    engine.submit(&put(0, 0, 8)).unwrap();
    engine.pump(&mut ()).unwrap();
    assert_eq!(engine.progress(&mut ()), Ok(false));
    assert_eq!(engine.check_stall(), Ok(()), "the timeout has not passed");
    let state = engine.state();
    assert!(state.contains("null posted 0 B, 1 waiting to be posted") && state.contains("1 \"again\""), "{state}");
}
