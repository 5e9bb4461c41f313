//! kernels

pub mod pattern;
