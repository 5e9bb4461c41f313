//! Tests of the engine over scripted rails.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod bytes;
mod credits;
mod end;
mod flush;
mod posting;
mod signals;
mod staging;

use super::{Engine, EngineError};
use ginlab_fabric::testing::scripted::{Closed, RailScript, Scripted};
use ginlab_fabric::{Access, Completion, MemoryRange, RemoteRegion, Transfer};
use kernels::command::Command;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const AMPLE: Duration = Duration::from_secs(10);
/// Timeout for tests that expect no stall. It is also the maximum wait for transfers that they leave posted.
const SOON: Duration = Duration::from_millis(1);
/// Size in bytes of the source region 0. Region 1, the destination, has twice that size.
const SPACE: u64 = 1 << 20;

/// An engine, its rails' scripts, and the order in which objects were closed. It has peers 0 and 1, whose regions have
/// the key `100 + 10 x region + rail`, doubled for peer 1.
struct Bench {
    engine: Engine<Scripted>,
    rails: Vec<Rc<RefCell<RailScript>>>,
    closed: Closed,
}

impl Bench {
    fn new(rails: usize, window: usize, timeout: Duration) -> Bench {
        Bench::with(rails, window, timeout, None)
    }

    fn with(rails: usize, window: usize, timeout: Duration, stage: Option<crate::stage::Stage>) -> Bench {
        let closed = Closed::default();
        let scripts: Vec<_> = (0..rails).map(|_| Rc::new(RefCell::new(RailScript::default()))).collect();
        let open = |(number, script): (usize, &Rc<RefCell<RailScript>>)| {
            // Limits differ between rails; the smallest applies.
            Scripted::new(format!("rail {number}"), 1 << (20 - number as u64), script, &closed)
        };
        let mut engine = Engine::new(scripts.iter().enumerate().map(open).collect(), window, timeout);
        let memory = |bytes| MemoryRange { address: 0, bytes, cuda_device: None };
        // SAFETY: scripted rails do not access the memory.
        let source = unsafe { engine.register(memory(SPACE as usize), Access::ALL, stage) }.unwrap();
        // SAFETY: scripted rails do not access the memory.
        let destination = unsafe { engine.register(memory(2 * SPACE as usize), Access::ALL, None) }.unwrap();
        assert_eq!((source.len(), destination.len()), (rails, rails));
        let keyed = |peer: u64| -> Vec<Vec<RemoteRegion>> {
            let region = |(number, on_rail): (u64, &Vec<RemoteRegion>)| {
                let key = |rail: usize| peer * (100 + 10 * number + rail as u64);
                on_rail.iter().enumerate().map(|(rail, region)| RemoteRegion { key: key(rail), ..*region }).collect()
            };
            [(0, &source), (1, &destination)].map(region).to_vec()
        };
        engine.set_peers(&[keyed(1), keyed(2)]).unwrap();
        engine.set_signals(super::SignalRule { me: 1, ranks: 2, ..super::SignalRule::default() }).unwrap();
        Bench { engine, rails: scripts, closed }
    }

    fn submit(&mut self, command: Command) -> u64 {
        self.engine.submit(&command).unwrap()
    }

    fn pump(&mut self) {
        self.engine.pump(&mut ()).unwrap();
    }

    fn progress(&mut self) -> Result<bool, EngineError> {
        self.engine.progress(&mut ())
    }

    fn written(&self, rail: usize) -> Vec<Transfer> {
        self.rails[rail].borrow().written.clone()
    }

    /// Makes the next poll of rail 0 return completions of these tokens.
    fn complete(&self, tokens: &[u64]) {
        self.rails[0].borrow_mut().ready.extend(tokens.iter().map(|&token| Completion::Done { token }));
    }
}

fn put(source_offset: u64, destination_offset: u64, bytes: u64) -> Command {
    Command::put((0, source_offset), (1, destination_offset), bytes, 0)
}
