//! cuda_builder
