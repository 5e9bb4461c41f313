//! Doubles of rails, for tests of what stands on them.

pub mod faulty;
#[allow(missing_docs, reason = "a script's fields are what tests ask by name")]
pub mod scripted;
