//! Tests of a grid of the emulated device that drives queues over the software NIC in this process.

mod common;
mod faults;
mod puts;
