//! Tests with targets that do not poll: their completion queues are finite, and no completion is lost.

use super::put;
use crate::engine::{Engine, SignalRule};
use crate::signal_order::{Rule, unpolled};
use ginlab_fabric::testing::scripted::queues::{Network, OUTSTANDING, QueueRail};
use ginlab_fabric::{Access, MemoryRange};
use ginlab_rails::strategy::Strategy;
use kernels::command::{Command, Opcode, signal_immediate};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use strum::VariantArray;

/// Longer than any test.
const AMPLE: Duration = Duration::from_secs(600);
/// Longest transfer in bytes.
const LONGEST: u64 = 64;
const RAILS: usize = 2;
/// Number of iterations without progress after which no further progress is expected.
const STILL: u32 = 3000;

struct Ranks {
    engines: Vec<Engine<QueueRail>>,
    network: Rc<RefCell<Network>>,
    /// Commands that each rank still has to submit.
    commands: Vec<Vec<Command>>,
}

impl Ranks {
    /// Creates ranks that each put `puts` times to every other rank, in 0 to 5 transfers. Every third command is a
    /// signal without a put.
    fn new(ranks: usize, rule: Rule, puts: u64) -> Ranks {
        let network = Network::new(ranks, RAILS, unpolled(ranks), 7 + ranks as u64);
        let engine = |me: usize| {
            let rails = (0..RAILS).map(|rail| QueueRail::new(&network, me, rail, LONGEST)).collect();
            let mut engine = Engine::new(rails, 4096, AMPLE);
            engine.set_signals(SignalRule { rule, me, ranks, ..SignalRule::default() }).unwrap();
            let memory = MemoryRange { address: 0, bytes: 1 << 20, cuda_device: None };
            // SAFETY: these rails do not access the memory.
            let region = unsafe { engine.register(memory, Access::ALL, None) }.unwrap();
            engine.set_peers(&vec![vec![region]; ranks]).unwrap();
            engine.configure(RAILS, Strategy::Split);
            engine
        };
        let commands = (0..ranks).map(|me| {
            let to = |number: u64| (0..ranks).filter(move |peer| *peer != me).map(move |peer| (number, peer));
            let command = |(number, peer): (u64, usize)| Command {
                opcode: if number % 3 == 2 { Opcode::Signal } else { Opcode::PutSignal },
                destination_region: 0,
                peer: peer as u32,
                immediate: signal_immediate(me as u32, 1),
                ..put(0, 0, number * 37 % (5 * LONGEST))
            };
            (0..puts).rev().flat_map(to).map(command).collect()
        });
        let commands = commands.collect();
        Ranks { engines: (0..ranks).map(engine).collect(), network, commands }
    }

    /// Runs one iteration of a rank. Returns whether anything progressed.
    fn turn(&mut self, rank: usize) -> bool {
        let engine = &mut self.engines[rank];
        let before = (self.commands[rank].len(), engine.watermark());
        while engine.room() > 0
            && let Some(command) = self.commands[rank].pop()
        {
            engine.submit(&command).unwrap();
        }
        engine.pump(&mut ()).unwrap();
        let polled = engine.progress(&mut ()).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        polled || before != (self.commands[rank].len(), engine.watermark())
    }

    /// Runs iterations of these ranks until none of them progresses.
    fn until_still(&mut self, ranks: std::ops::Range<usize>) {
        let mut still = 0;
        while still < STILL {
            let moved = ranks.clone().fold(false, |moved, rank| self.turn(rank) | moved);
            still = if moved { 0 } else { still + 1 };
        }
    }
}

/// The first rank does not poll until all others have stopped. Without credits its queues would overflow.
#[test]
fn target_without_polling_loses_no_signals() {
    for ranks in [2, 3] {
        for rule in Rule::VARIANTS {
            // The number exceeds the capacity of all queues of a target.
            let puts = 6000;
            let mut all = Ranks::new(ranks, *rule, puts);
            all.until_still(1..ranks);
            let (waiting, fullest) = (all.engines[1].in_flight(), all.network.borrow().fullest);
            assert!(fullest <= OUTSTANDING + unpolled(ranks), "{rule}: overrun by {fullest} entries");
            assert!(waiting > 0, "{rule}: the target has room for everything, so this test shows nothing");
            // All credits are used, or all slots if there are fewer of them.
            assert!(fullest > 500 * (ranks - 1), "{rule}: {fullest} of {}", unpolled(ranks));
            let state = all.engines[1].state();
            assert!(state.contains("wait for a signal to peer 0"), "{rule}: {state}");
            all.until_still(0..ranks);
            for (rank, engine) in all.engines.iter().enumerate() {
                assert_eq!((engine.in_flight(), all.commands[rank].len()), (0, 0), "{rule}: {}", engine.state());
                let mut expected = vec![puts; ranks];
                expected[rank] = 0;
                assert_eq!(engine.signals()[..ranks], expected, "{rule}: rank {rank} of {ranks}");
            }
        }
    }
}
