//! The rail's interface for messages.

use super::mailbox::Mailbox;
use super::messages::Room;
use super::{Due, WorstRail, WorstRegion, faults};
use crate::same_host::peers::{failed, name_of};
use crate::{FabricError, Message, Messages, Post, Rail, mistake};

impl Messages for WorstRail {
    unsafe fn send(&mut self, region: &WorstRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
        let room = self.room(region, message, &format!("send to peer {peer}"))?;
        if self.messages.is_none() {
            return Err(self.has_none("messages"));
        }
        if self.answers_again() {
            return Ok(Post::Again);
        }
        let there = self.peers.get(peer).filter(|peer| !peer.has_ended).zip(self.tables.get(peer));
        let Some((there, mailbox)) = there.map(|(there, (_, mailbox, _))| (there, *mailbox)) else {
            let text = "no such peer, or its process exited";
            return Err(mistake(&self.name, format!("send to peer {peer}"), text));
        };
        let (pid, name) = (there.inbox.pid, &self.name);
        let join = || match mailbox {
            0 => Err(mistake(name, format!("send to peer {peer}"), "its rail was opened without messages")),
            key => {
                Mailbox::join(name_of(pid, key)).map_err(|error| failed(name, format!("send to peer {peer}"), &error))
            }
        };
        let Some(messages) = &mut self.messages else { return Ok(Post::Again) };
        let since = self.ours.tick();
        // SAFETY: the caller guarantees that the bytes are valid, and the range was checked.
        let sent = unsafe { messages.send(peer, room, since, &mut self.law, join) }?;
        let Some(due) = sent else { return Ok(Post::Again) };
        self.events += 1;
        let delay = self.law.delay();
        self.put_off(delay, Due::Message(due));
        Ok(Post::Accepted)
    }

    unsafe fn receive(&mut self, region: &WorstRegion, message: &Message) -> Result<Post, FabricError> {
        let room = self.room(region, message, "receive")?;
        let poison = self.poison();
        let Some(messages) = &mut self.messages else { return Err(self.has_none("messages")) };
        // SAFETY: the caller guarantees that the bytes are valid, and the range was checked.
        let taken = unsafe { messages.receive(room, poison) };
        Ok(if taken { Post::Accepted } else { Post::Again })
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        if self.messages.as_mut().is_some_and(|messages| messages.cancel(token)) {
            let error = faults::cancelled(&self.name, token);
            self.end(token, error);
        }
        Ok(())
    }
}

impl WorstRail {
    /// Returns the range of a message, if it is in the region.
    fn room(&self, region: &WorstRegion, message: &Message, what: &str) -> Result<Room, FabricError> {
        let (bytes, near) = (message.bytes, &region.near);
        if message.offset > near.bytes || bytes > near.bytes - message.offset {
            let text = format!("{bytes} B at offset {} of a region of {} B", message.offset, near.bytes);
            return Err(mistake(&self.name, what, text));
        }
        Ok(Room { token: message.token, to: near.address + message.offset, bytes })
    }
}
