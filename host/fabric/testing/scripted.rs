//! A rail for unit tests. It moves nothing, follows a script and records its calls.

pub mod queues;

use crate::{
    Access, Completion, FabricError, MemoryRange, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer,
};
use std::cell::RefCell;
use std::rc::Rc;

/// An address that a scripted rail refuses.
pub const NO_ADDRESS: &[u8] = b"no address";

/// The recorded calls of a rail, and its answers.
#[derive(Default)]
pub struct RailScript {
    pub written: Vec<Transfer>,
    pub read: Vec<Transfer>,
    /// Whether posts are answered with "again".
    pub full: bool,
    /// Number of accepted posts after which posts return an error.
    pub breaks_after: Option<usize>,
    /// Completions that the next poll returns.
    pub ready: Vec<Completion>,
    /// Number of polls after which each poll completes all posted writes.
    pub completes_after: Option<u32>,
    pub dead: bool,
    pub panics: bool,
    pub polls: u32,
    /// Messages that were sent, each with its peer.
    pub sent: Vec<(usize, Message)>,
    pub received: Vec<Message>,
    /// Receives that were cancelled.
    pub cancelled: Vec<u64>,
    /// Number of peers added one by one.
    pub peers: usize,
    pub removed: Vec<usize>,
    /// Whether the removal of a peer returns an error.
    pub keeps_peers: bool,
}

/// Names of the objects that were closed, in order.
pub type Closed = Rc<RefCell<Vec<String>>>;

pub struct Scripted {
    name: String,
    limits: RailLimits,
    script: Rc<RefCell<RailScript>>,
    closed: Closed,
}

pub struct ScriptedRegion {
    remote: RemoteRegion,
    name: String,
    closed: Closed,
}

impl Drop for ScriptedRegion {
    fn drop(&mut self) {
        self.closed.borrow_mut().push(format!("region of {}", self.name));
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.closed.borrow_mut().push(self.name.clone());
    }
}

impl Scripted {
    pub fn new(name: String, longest: u64, script: &Rc<RefCell<RailScript>>, closed: &Closed) -> Scripted {
        let limits = RailLimits {
            max_transfer_bytes: longest,
            max_outstanding: 64,
            immediate_bytes: 4,
            link_bits_per_second: None,
            cuda_memory: false,
        };
        Scripted { name, limits, script: script.clone(), closed: closed.clone() }
    }

    fn error(&self, operation: &str) -> FabricError {
        let (operation, text) = (operation.to_owned(), "as the test says".to_owned());
        FabricError { rail: self.name.clone(), operation, code: 5, text, hint: String::new() }
    }

    fn take(&mut self, transfer: &Transfer, read: bool) -> Result<Post, FabricError> {
        let mut script = self.script.borrow_mut();
        if script.full {
            return Ok(Post::Again);
        }
        if script.breaks_after == Some(script.written.len()) {
            return Err(self.error("post"));
        }
        if read { &mut script.read } else { &mut script.written }.push(*transfer);
        Ok(Post::Accepted)
    }
}

impl Rail for Scripted {
    type Region = ScriptedRegion;

    fn name(&self) -> &str {
        &self.name
    }
    fn limits(&self) -> &RailLimits {
        &self.limits
    }
    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }
    unsafe fn register(&mut self, memory: MemoryRange, _access: Access) -> Result<ScriptedRegion, FabricError> {
        let remote = RemoteRegion { key: 0, base: 0, bytes: memory.bytes as u64 };
        Ok(ScriptedRegion { remote, name: self.name.clone(), closed: self.closed.clone() })
    }
    fn remote(&self, region: &ScriptedRegion) -> RemoteRegion {
        region.remote
    }
    unsafe fn write(&mut self, _: &ScriptedRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.take(transfer, false)
    }
    unsafe fn read(&mut self, _: &ScriptedRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.take(transfer, true)
    }
    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        if address == NO_ADDRESS {
            return Err(crate::mistake(&self.name, "add_peer".to_owned(), "this is no address"));
        }
        let mut script = self.script.borrow_mut();
        script.peers += 1;
        // The index differs from the one that the caller would expect.
        Ok(script.peers + 6)
    }
    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        self.script.borrow_mut().removed.push(peer);
        if self.script.borrow().keeps_peers { Err(self.error("remove_peer")) } else { Ok(()) }
    }
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut script = self.script.borrow_mut();
        assert!(!script.panics, "expected by the test: this rail panics");
        script.polls += 1;
        completions.append(&mut script.ready);
        if script.completes_after.is_some_and(|polls| script.polls > polls) {
            let tokens: Vec<u64> = script.written.drain(..).map(|transfer| transfer.token).collect();
            completions.extend(tokens.into_iter().map(|token| Completion::Done { token }));
        }
        if script.dead { Err(self.error("poll")) } else { Ok(()) }
    }
}

impl Messages for Scripted {
    unsafe fn send(&mut self, _: &ScriptedRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
        let mut script = self.script.borrow_mut();
        if script.full {
            return Ok(Post::Again);
        }
        script.sent.push((peer, *message));
        Ok(Post::Accepted)
    }
    unsafe fn receive(&mut self, _: &ScriptedRegion, message: &Message) -> Result<Post, FabricError> {
        let mut script = self.script.borrow_mut();
        if script.full {
            return Ok(Post::Again);
        }
        script.received.push(*message);
        Ok(Post::Accepted)
    }
    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        self.script.borrow_mut().cancelled.push(token);
        Ok(())
    }
}
