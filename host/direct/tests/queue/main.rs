//! A grid of the emulated device that drives queues itself, over the card in this process.

mod common;
mod faults;
mod puts;
