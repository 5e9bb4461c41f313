//! Test doubles of rails, for tests of code that uses rails.

pub mod faulty;
pub mod layer;
mod no_messages;
#[allow(missing_docs, reason = "a script's fields are what tests ask by name")]
pub mod scripted;
