//! The study of queues: the code that `ginlab queue` measures. Puts do not use it.
//!
//! The study calls the push of the production ring ([`Ring::push_words`]), and contains:
//!
//! - [`elements`]: the ring with elements of other widths, with elements of a whole warp, or with one release store per
//!   element;
//! - [`vyukov`]: another queue, for comparison with the ring;
//! - [`kernel`]: the grids that push.
//!
//! The first word of an element identifies the producer and the push; the other words are computed from it
//! ([`element_word`]). The CPU can thus detect lost, duplicated, torn and reordered elements.

pub mod elements;
pub mod kernel;
pub mod vyukov;

use crate::command::COMMAND_WORDS;
use crate::ring::producer::Fence;
use crate::ring::{Observe, Ring, Status};
use cuda_std::warp;
use vyukov::Vyukov;

/// Mask of the 63 content bits of a word.
pub const CONTENT: u64 = (1 << 63) - 1;

/// Returns word `index` of an element whose first word is `first`. The word is linear in `first` modulo 2^63, so the
/// sum over all elements of a run can be computed without visiting them.
#[inline(always)]
pub fn element_word(first: u64, index: u32) -> u64 {
    let index = index as u64;
    first.wrapping_mul(2 * index + 1).wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)) & CONTENT
}

/// Returns the first word of an element, which identifies the producer and the push.
#[inline(always)]
pub fn first_word(producer: u32, number: u32) -> u64 {
    (producer as u64) << 32 | number as u64
}

/// A queue from many device threads to one CPU thread.
pub trait Queue {
    /// Pushes one element per active lane and returns the lane's ticket.
    ///
    /// # Errors
    /// Returns the [`Status`] with which the push failed.
    fn push(&mut self, words: u32, word: impl Fn(u32) -> u64 + Copy, observe: &mut impl Observe)
    -> Result<u64, Status>;

    /// Pushes one element for the whole warp. Every lane of `mask` must pass the same element. By default the leader
    /// pushes it.
    ///
    /// # Errors
    /// Returns the [`Status`] with which the push failed.
    #[inline(always)]
    fn push_warp(
        &mut self,
        mask: u32,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        let leader = mask.trailing_zeros();
        let mut result = Ok(0);
        if warp::lane() == leader {
            result = self.push(words, word, observe);
        }
        share(mask, leader, result)
    }

    /// Waits until this ticket's element has been taken.
    ///
    /// # Errors
    /// Returns the [`Status`] that ended the wait.
    fn wait(&mut self, ticket: u64, observe: &mut impl Observe) -> Result<(), Status>;
}

/// Broadcasts the leader's result to every lane.
#[inline(always)]
fn share(mask: u32, leader: u32, result: Result<u64, Status>) -> Result<u64, Status> {
    let (value, stop) = match result {
        Ok(value) => (value, 0),
        Err(stop) => (0, stop.0),
    };
    let value = warp::broadcast_u64(mask, value, leader);
    let stop = warp::broadcast_u64(mask, stop, leader);
    if stop == 0 { Ok(value) } else { Err(Status(stop)) }
}

impl Queue for Ring {
    #[inline(always)]
    fn push(
        &mut self,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        if words == COMMAND_WORDS {
            // Calls the production push.
            self.push_words(Fence::None, [word(0), word(1), word(2), word(3)], observe)
        } else {
            elements::push(self, words, word, observe)
        }
    }

    #[inline(always)]
    fn push_warp(
        &mut self,
        mask: u32,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        elements::push_warp(self, mask, Fence::None, words, word, observe)
    }

    #[inline(always)]
    fn wait(&mut self, ticket: u64, observe: &mut impl Observe) -> Result<(), Status> {
        self.wait_observed(ticket, observe).map(drop)
    }
}

/// The ring with one release store per element.
struct Released(Ring);

impl Queue for Released {
    #[inline(always)]
    fn push(
        &mut self,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        elements::push_released(&mut self.0, words, word, observe)
    }

    #[inline(always)]
    fn wait(&mut self, ticket: u64, observe: &mut impl Observe) -> Result<(), Status> {
        Queue::wait(&mut self.0, ticket, observe)
    }
}

impl Queue for Vyukov {
    #[inline(always)]
    fn push(
        &mut self,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        Vyukov::push(self, words, word, observe)
    }

    #[inline(always)]
    fn wait(&mut self, position: u64, observe: &mut impl Observe) -> Result<(), Status> {
        Vyukov::wait(self, position, observe)
    }
}
