//! Layers between a rail and its user, for tests and experiments. Only [`Layered`] forwards calls, and a layer
//! implements only its changes.

use crate::{
    Access, Completion, FabricError, MemoryRange, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer,
};

/// A post.
#[derive(Clone, Copy, Debug)]
pub enum Posting<'a> {
    /// A write.
    Write(&'a Transfer),
    /// A read.
    Read(&'a Transfer),
    /// A message to a peer.
    Send(usize, &'a Message),
    /// A receive buffer.
    Receive(&'a Message),
}

/// Hooks between a rail and its user. By default they do nothing.
pub trait Layer {
    /// Called before memory is registered. An error refuses the registration.
    ///
    /// # Errors
    /// Returns the layer's own error.
    fn before_register(&mut self, _rail: &str, _memory: MemoryRange) -> Result<(), FabricError> {
        Ok(())
    }

    /// Called before a post. If it returns [`Post::Again`], this is returned to the caller and the rail is not called.
    /// [`Post::Accepted`] forwards the post.
    fn before_post(&mut self, _posting: Posting<'_>) -> Post {
        Post::Accepted
    }

    /// Called after the rail has accepted a post.
    fn after_post(&mut self, _posting: Posting<'_>) {}

    /// Called before the rail is polled. If it returns an error, the poll returns this error and the rail is not
    /// polled.
    ///
    /// # Errors
    /// Returns the layer's own error.
    fn before_poll(&mut self, _rail: &str) -> Result<(), FabricError> {
        Ok(())
    }

    /// Called with the completions that the rail has just returned, to change, delay or extend them.
    ///
    /// # Errors
    /// Returns the layer's own error, after the completions.
    fn after_poll(&mut self, _rail: &str, _completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        Ok(())
    }
}

/// A rail with a layer.
#[derive(Debug)]
pub struct Layered<R, L> {
    inner: R,
    /// The layer.
    pub layer: L,
    limits: RailLimits,
    fresh: Vec<Completion>,
}

impl<R: Rail, L: Layer> Layered<R, L> {
    /// Adds a layer to a rail.
    pub fn over(inner: R, layer: L) -> Self {
        Layered { limits: inner.limits().clone(), inner, layer, fresh: Vec::new() }
    }

    /// Replaces the limits, which are initially those of the inner rail.
    #[must_use]
    pub fn with_limits(self, limits: RailLimits) -> Self {
        Layered { limits, ..self }
    }

    /// Returns the inner rail.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    fn post(
        &mut self,
        posting: Posting<'_>,
        post: impl FnOnce(&mut R) -> Result<Post, FabricError>,
    ) -> Result<Post, FabricError> {
        if self.layer.before_post(posting) == Post::Again {
            return Ok(Post::Again);
        }
        let posted = post(&mut self.inner);
        if posted == Ok(Post::Accepted) {
            self.layer.after_post(posting);
        }
        posted
    }
}

impl<R: Rail, L: Layer> Rail for Layered<R, L> {
    type Region = R::Region;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn limits(&self) -> &RailLimits {
        &self.limits
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        self.inner.address()
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        self.inner.add_peer(address)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        self.inner.remove_peer(peer)
    }

    unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<R::Region, FabricError> {
        self.layer.before_register(self.inner.name(), memory)?;
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        unsafe { self.inner.register(memory, access) }
    }

    fn remote(&self, region: &R::Region) -> RemoteRegion {
        self.inner.remote(region)
    }

    unsafe fn write(&mut self, region: &R::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        self.post(Posting::Write(transfer), |inner| unsafe { inner.write(region, transfer) })
    }

    unsafe fn read(&mut self, region: &R::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        self.post(Posting::Read(transfer), |inner| unsafe { inner.read(region, transfer) })
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.layer.before_poll(self.inner.name())?;
        self.inner.poll(&mut self.fresh)?;
        let seen = self.layer.after_poll(self.inner.name(), &mut self.fresh);
        completions.append(&mut self.fresh);
        seen
    }
}

impl<R: Messages, L: Layer> Messages for Layered<R, L> {
    unsafe fn send(&mut self, region: &R::Region, peer: usize, message: &Message) -> Result<Post, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        self.post(Posting::Send(peer, message), |inner| unsafe { inner.send(region, peer, message) })
    }

    unsafe fn receive(&mut self, region: &R::Region, message: &Message) -> Result<Post, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        self.post(Posting::Receive(message), |inner| unsafe { inner.receive(region, message) })
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        self.inner.cancel(token)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;
    use crate::testing::scripted::{Closed, RailScript, Scripted};
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Nothing;
    impl Layer for Nothing {}

    /// Each call of a layered rail arrives at the inner rail.
    #[test]
    fn empty_layer_forwards_everything() {
        let script = Rc::new(RefCell::new(RailScript::default()));
        let inner = Scripted::new("below".into(), 99, &script, &Closed::default());
        let mut rail = Layered::over(inner, Nothing);
        assert_eq!((rail.name(), rail.limits().max_transfer_bytes, rail.address()), ("below", 99, Ok(Vec::new())));
        assert_eq!((rail.add_peer(&[]), rail.insert_peers(&[Vec::new()])), (Ok(7), Ok(())));
        rail.remove_peer(7).unwrap();
        let memory = MemoryRange { address: 0, bytes: 16, cuda_device: None };
        // SAFETY: here and below, scripted rails do not access the memory.
        let region = unsafe { rail.register(memory, Access::ALL) }.unwrap();
        let remote = rail.remote(&region);
        assert_eq!(remote.bytes, 16);
        let transfer = |token| Transfer::new(0, (7, remote, 0), 8, token);
        let message = |token| Message { offset: 0, bytes: 8, token };
        // SAFETY: scripted rails do not access the memory.
        unsafe {
            assert_eq!(rail.write(&region, &transfer(1)), Ok(Post::Accepted));
            assert_eq!(rail.read(&region, &transfer(2)), Ok(Post::Accepted));
            assert_eq!(rail.send(&region, 7, &message(3)), Ok(Post::Accepted));
            assert_eq!(rail.receive(&region, &message(4)), Ok(Post::Accepted));
        }
        rail.cancel(4).unwrap();
        script.borrow_mut().ready.push(Completion::Immediate { value: 5 });
        let mut completions = Vec::new();
        rail.poll(&mut completions).unwrap();
        assert!(matches!(completions[..], [Completion::Immediate { value: 5 }]));
        let script = script.borrow();
        assert_eq!((script.peers, &script.removed[..], &script.cancelled[..]), (2, &[7][..], &[4][..]));
        assert_eq!((script.written[0].token, script.read[0].token), (1, 2));
        assert_eq!((script.sent[0].1.token, script.received[0].token), (3, 4));
    }
}
