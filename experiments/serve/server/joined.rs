//! A client that has joined.

use super::super::memory::checksum;
use super::super::window::Told;
use super::super::words::{self, Answer, Checksum, PeerVerdict, WritesDone};
use super::{LOOK, Shared};
use crate::error::Failure;
use crate::events;
use ginlab::bootstrap::FailureKind;
use ginlab::bootstrap::session::Session;
use ginlab::cuda::Buffer;
use std::rc::Rc;
use std::time::Instant;

/// A peer that has joined. Dropping it frees its slot, after a delay if the peer has not left regularly.
pub(super) struct Joined<'a> {
    pub(super) shared: &'a Shared,
    pub(super) slot: usize,
    pub(super) memory: Rc<Buffer>,
    pub(super) number: u32,
    /// Immediate that the peer raises with its writes.
    pub(super) tag: u32,
    pub(super) write_bytes: u64,
    pub(super) writes: u64,
    /// Whether the peer has left regularly, with all its writes complete.
    pub(super) left: bool,
}

impl Joined<'_> {
    pub(super) fn bytes(&self) -> u64 {
        // A peer may raise its tag without writing.
        self.writes.saturating_mul(self.write_bytes)
    }

    /// Counts the writes that have arrived since the last call. Returns whether there were any.
    pub(super) fn collect(&mut self) -> bool {
        let arrived = self.shared.rails.flow.take_immediates(self.tag);
        self.writes += arrived;
        self.shared.tell_strays();
        arrived > 0
    }

    /// Waits for the end of the peer's writes and sends their checksum. Returns whether the peer confirmed it.
    pub(super) async fn serve(&mut self, visit: &mut Session, who: &[(&str, String)]) -> Result<bool, Failure> {
        let done = self.until_done(visit, who).await?;
        if done.extent > self.memory.bytes() as u64 {
            let why = format!("{} B exceed the slot of {} B", done.extent, self.memory.bytes());
            return Err(visit.refuse(why).await.into());
        }
        // The peer's writes are complete and thus in memory, but their last immediates may not have been polled yet.
        let answer = Checksum { crc32: checksum(&self.memory, done.extent as usize).await?, writes: self.writes };
        visit.say(words::DONE, &Answer::Checksum(answer)).await?;
        let verdict: PeerVerdict = visit.hear(words::VERDICT).await?;
        Ok(verdict.right)
    }

    /// Waits until the peer has reported that it is done and all its writes have arrived. Fails if neither messages nor
    /// writes arrive within the timeout.
    async fn until_done(&mut self, visit: &mut Session, who: &[(&str, String)]) -> Result<WritesDone, Failure> {
        let mut done: Option<WritesDone> = None;
        let mut told = Told::new(self.shared.window);
        let mut moved = Instant::now();
        loop {
            let word = match &done {
                Some(done) if self.writes >= done.writes => break,
                // The peer has no more messages to send except its disconnect.
                Some(_) => tokio::time::timeout(LOOK, visit.hear::<WritesDone>(words::VERDICT)).await,
                None => tokio::time::timeout(LOOK, visit.hear::<WritesDone>(words::DONE)).await,
            };
            let first = self.writes == 0;
            if self.collect() {
                moved = Instant::now();
                if first {
                    events::print("writing", who);
                }
            }
            match word {
                Ok(Ok(word)) => (done, moved) = (Some(word), Instant::now()),
                Err(_) => {}
                Ok(Err(error)) if error.ending() == FailureKind::TimedOut => {}
                Ok(Err(error)) => return Err(error.into()),
            }
            if done.is_none()
                && let Some(counted) = told.due(self.writes)
            {
                visit.say(words::DONE, &Answer::Counted(counted)).await?;
            }
            if moved.elapsed() >= self.shared.timeout {
                let seconds = self.shared.timeout.as_secs();
                let text = format!("no message and no write for {seconds} s; {} writes have arrived", self.writes);
                return Err(Failure::Timeout(text));
            }
        }
        done.ok_or_else(|| Failure::Run("the peer's last message was lost".to_owned()))
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.shared.torn.set(true);
        }
        // Revokes key and tag, whether or not the peer is dead.
        let rest = (!self.left).then(|| Instant::now() + self.shared.timeout);
        self.shared.revoke(self.slot, rest);
        self.shared.rails.flow.forget_immediates(self.tag);
        self.shared.drive(false);
    }
}
