//! Messages for null rails, which support none: flows require the trait, and their tests run over null rails.

use crate::null::{NullRail, NullRegion};
use crate::{FabricError, Message, Messages, Post, Rail};

impl Messages for NullRail {
    unsafe fn send(&mut self, _: &NullRegion, _: usize, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    unsafe fn receive(&mut self, _: &NullRegion, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    fn cancel(&mut self, _token: u64) -> Result<(), FabricError> {
        Err(self.has_none("messages"))
    }
}
