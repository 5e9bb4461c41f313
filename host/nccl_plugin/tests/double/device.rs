//! NCCL's device side: the calls of the plugin by `put` and `signal` of `nccl_device/gin/proxy/gin_proxy.h` (2.30.7,
//! 2.32.3), and NCCL's guarantees for them.
//!
//! - A *strong* signal is visible after all previous puts and signals of its context to its peer
//!   (plugins/gin/README.md). `SignalInc`, `SignalAdd`, `VASignalInc` and `VASignalAdd` are strong unless
//!   `ginStrongSignalsRequired` is false.
//! - A *weak* signal is visible after the put with which it is bundled (gin.h).
//! - A put with a weak signal at an address is split into an `iput` without a signal and an `iputSignal` of no bytes.
//! - A put of more than 1 GiB is split into several, of which the last has the signal.

use crate::rank::{NcclRank, RegisteredMemory};
use std::ffi::{c_int, c_void};

/// A word to which a signal adds.
#[derive(Clone, Copy)]
pub enum SignalTarget<'a> {
    /// An indexed signal, in NCCL's own never-reset memory.
    Index(&'a RegisteredMemory, u64),
    /// A word in a window, in GPU or host memory, which a program may reset.
    Address(&'a RegisteredMemory, u64),
}

/// A signal of a put.
#[derive(Clone, Copy)]
pub struct TestSignal<'a> {
    pub word: SignalTarget<'a>,
    pub add: u64,
    pub strong: bool,
}

impl NcclRank {
    /// Submits a put like NCCL's kernels, with or without a signal. `most` is the maximum length of one call: 1 GiB in
    /// NCCL, less in these tests.
    #[allow(clippy::too_many_arguments, reason = "as NCCL's")]
    pub fn gin_put(
        &self,
        context: c_int,
        from: (&RegisteredMemory, u64),
        bytes: usize,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<TestSignal<'_>>,
        most: usize,
    ) -> Vec<*mut c_void> {
        let bundled = signal.map(|signal| match signal.word {
            SignalTarget::Index(memory, index) => (memory, index * 8, signal.add, signal.strong),
            SignalTarget::Address(memory, offset) => (memory, offset, signal.add, signal.strong),
        });
        let splits = signal.is_some_and(|signal| !signal.strong && matches!(signal.word, SignalTarget::Address(..)));
        let (mut requests, mut at) = (Vec::new(), 0);
        while bytes - at > most {
            requests.push(self.put_in(
                context,
                (from.0, from.1 + at as u64),
                most,
                (to.0, to.1 + at as u64),
                peer,
                None,
            ));
            at += most;
        }
        let (from, to) = ((from.0, from.1 + at as u64), (to.0, to.1 + at as u64));
        if splits && bytes > 0 {
            requests.push(self.put_in(context, from, bytes - at, to, peer, None));
            requests.push(self.put_in(context, from, 0, to, peer, bundled));
        } else {
            requests.push(self.put_in(context, from, bytes - at, to, peer, bundled));
        }
        requests
    }
}
