//! Runs an exhibit that is a rule of a proxy: on each PE the rule's own code drives a rail.

use super::network::{self, ExhibitPe, StepEffect};
use cuda_std::emulation::{Stepped, SteppedStop};
use cuda_std::thread;
use ginlab::cuda::Buffer;
use ginlab::fabric::worst::{WorstRail, WorstRegion, WorstSpec};
use ginlab::fabric::{Completion, FabricError, Post, Rail, RemoteRegion, Transfer};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Result of a rule, with its mistake as the error.
pub type RuleResult = Result<(), String>;

/// The code of a PE: the PE's port, and whether to run the fixed form.
pub type ExhibitBody = fn(&Port, bool) -> RuleResult;

/// First word of the message about a run that hangs.
pub const HANGS: &str = "hangs";
/// Number of words of a PE's memory.
const WORDS: u64 = 1024;
/// Maximum number of polls until the transfers of a run have ended.
const ENDING_POLLS: u32 = 100_000;

/// A write of words to another PE.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortWrite {
    /// The other PE. `None` if there are two.
    pub pe: Option<usize>,
    /// First word, in this PE's memory.
    pub from: u64,
    /// First word, in the memory of the other PE.
    pub to: u64,
    /// Number of words. 0 if only the immediate is sent.
    pub words: u64,
    /// Immediate that the other PE is notified of.
    pub immediate: Option<u32>,
    /// Identifier of the write for its completion.
    pub token: u64,
}

/// Completions and notifications of a poll.
#[derive(Debug, Default)]
pub struct Events {
    /// Tokens of this PE's complete writes.
    pub done: Vec<u64>,
    /// Tokens of this PE's failed writes, with the errors.
    pub failed: Vec<(u64, String)>,
    /// Immediates of the other PE's writes.
    pub immediates: Vec<u32>,
}

/// A PE's access to its rail and memory.
pub struct Port {
    me: usize,
    spec: WorstSpec,
    rail: RefCell<WorstRail>,
    region: WorstRegion,
    remotes: RefCell<Vec<RemoteRegion>>,
    memory: Buffer,
    /// Number of writes that are posted and not complete.
    posted: Cell<u64>,
    /// Whether the PE has posted or received anything since its last step.
    moved: Cell<bool>,
    /// Token of the write whose completion is replaced by an error.
    broken: Cell<Option<u64>>,
    /// Description of what the PE waits for.
    waits: RefCell<String>,
}

impl Port {
    fn open(me: usize, mut node: ExhibitPe, spec: &WorstSpec) -> Result<Port, String> {
        let region = node.register()?;
        let ExhibitPe { rail, memory } = node;
        Ok(Port {
            me,
            spec: *spec,
            rail: RefCell::new(rail),
            region,
            remotes: RefCell::default(),
            memory,
            posted: Cell::new(0),
            moved: Cell::new(false),
            broken: Cell::new(None),
            waits: RefCell::default(),
        })
    }

    /// Returns the number of this PE.
    pub fn me(&self) -> usize {
        self.me
    }

    /// Returns the seed of the run, from which a rule may draw.
    pub fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// Replaces the completion of the write with this token by an error completion.
    pub fn break_write(&self, token: u64) {
        self.broken.set(Some(token));
    }

    fn pointer(&self, index: u64) -> *mut u64 {
        assert!(index < WORDS, "no such word");
        // SAFETY: the index is within the memory of `WORDS` words.
        unsafe { self.memory.pointer::<u64>().add(index as usize) }
    }

    /// Returns a word of this PE's memory.
    pub fn word(&self, index: u64) -> u64 {
        // SAFETY: the word is in this PE's memory, which rails access only during their calls, on this thread.
        unsafe { self.pointer(index).read_volatile() }
    }

    /// Sets a word of this PE's memory.
    pub fn set_word(&self, index: u64, value: u64) {
        // SAFETY: the requirements are the same as for `word`.
        unsafe { self.pointer(index).write_volatile(value) };
    }

    /// Posts a write, which the rail may refuse for now.
    pub fn try_write(&self, write: PortWrite) -> Result<Post, String> {
        let (other, bytes) = (write.pe.unwrap_or(1 - self.me.min(1)), 8 * write.words);
        let remote = self.remotes.borrow()[other];
        let mut transfer = Transfer::new(8 * write.from, (other, remote, 8 * write.to), bytes, write.token);
        transfer.immediate = write.immediate;
        // SAFETY: the words are in the region. A rule that rewrites them too early makes the mistake under study, which
        // the rail tolerates and reports.
        let post = unsafe { self.rail.borrow_mut().write(&self.region, &transfer) };
        let post = post.map_err(|error| error.to_string())?;
        if post == Post::Accepted {
            self.posted.set(self.posted.get() + 1);
            self.moved.set(true);
        }
        Ok(post)
    }

    /// Posts a write as soon as the rail accepts it.
    pub fn write(&self, write: PortWrite) -> RuleResult {
        while self.try_write(write)? == Post::Again {
            self.pause();
        }
        Ok(())
    }

    /// Polls the rail.
    pub fn poll(&self) -> Result<Events, String> {
        let (mut completions, mut events) = (Vec::new(), Events::default());
        self.rail.borrow_mut().poll(&mut completions).map_err(|error| error.to_string())?;
        for completion in completions {
            self.moved.set(true);
            match completion {
                Completion::Done { token } => {
                    self.posted.set(self.posted.get() - 1);
                    if self.broken.get() == Some(token) {
                        events.failed.push((token, injected(token).to_string()));
                    } else {
                        events.done.push(token);
                    }
                }
                Completion::Failed { error, .. } => return Err(error.to_string()),
                Completion::Immediate { value } => events.immediates.push(value),
                Completion::Received { .. } => {}
            }
        }
        Ok(events)
    }

    /// Lets the other PE run.
    pub fn pause(&self) {
        thread::relax();
    }

    /// Polls the rail and hands the events to `enough` until that returns true. `what` describes what is missing, for a
    /// run that hangs.
    pub fn until(
        &self,
        mut enough: impl FnMut(Events) -> Result<bool, String>,
        what: impl Fn() -> String,
    ) -> RuleResult {
        loop {
            if enough(self.poll()?)? {
                self.waits.borrow_mut().clear();
                return Ok(());
            }
            *self.waits.borrow_mut() = what();
            self.pause();
        }
    }
}

/// Returns the error of a completion that the exhibit breaks.
fn injected(token: u64) -> FabricError {
    FabricError {
        rail: "worst".into(),
        operation: format!("fi_write {token}"),
        code: nix::libc::EIO,
        text: "injected error completion".into(),
        hint: String::new(),
    }
}

/// Runs a rule on `pes` PEs over the network. Returns the mistake that a PE or the network has found.
pub fn run(body: ExhibitBody, fixed: bool, pes: usize, spec: &WorstSpec) -> RuleResult {
    let nodes = network::open(spec, pes, 8 * WORDS as usize)?;
    let ports = nodes.into_iter().enumerate().map(|(me, node)| Port::open(me, node, spec).map(Rc::new));
    let ports = ports.collect::<Result<Vec<_>, String>>()?;
    let remotes: Vec<_> = ports.iter().map(|port| port.rail.borrow().remote(&port.region)).collect();
    let results: Rc<RefCell<Vec<Option<RuleResult>>>> = Rc::new(RefCell::new(vec![None; pes]));
    let mut programs = Vec::new();
    for port in &ports {
        *port.remotes.borrow_mut() = remotes.clone();
        let (port, results) = (port.clone(), results.clone());
        let program = Stepped::new(move || {
            let done = body(&port, fixed);
            results.borrow_mut()[port.me] = Some(done);
        });
        programs.push(program.map_err(|error| format!("no memory for the stack of a program: {error}"))?);
    }
    let ended = network::run(spec.seed, pes, pes, |me| {
        let port = &ports[me];
        if programs[me].turn()? != SteppedStop::Ended {
            return Ok(if port.moved.take() { StepEffect::Moved } else { StepEffect::Idle });
        }
        results.borrow_mut()[me].take().transpose()?;
        // The rail still delivers what the program has posted.
        port.poll()?;
        Ok(StepEffect::Ended)
    });
    drop(programs);
    settle(&ports);
    if ended? {
        return Ok(());
    }
    let waits: Vec<String> =
        ports.iter().map(|port| port.waits.borrow().clone()).filter(|text| !text.is_empty()).collect();
    Err(format!("{HANGS}: {}", waits.join("; ")))
}

/// Ends the transfers of a run, so that the rails can be closed.
fn settle(ports: &[Rc<Port>]) {
    for _ in 0..ENDING_POLLS {
        if ports.iter().all(|port| port.posted.get() == 0) {
            return;
        }
        for port in ports {
            // A failure at this point follows from the one that ended the run.
            let _ = port.poll();
        }
    }
}
