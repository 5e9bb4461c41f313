//! Tests that run the command `ginlab` as a user would. One program, so that the library is linked once, with one file
//! per subject.
//!
//! To run one file: `cargo test --test command serve::`

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod common;
#[path = "../passed/mod.rs"]
mod passed;

mod affinity;
mod all2all;
mod archive;
mod chart;
mod cli;
mod cluster;
mod collective;
mod compare;
mod containers;
mod corrupt;
mod direct;
mod doctor;
mod doctor_peers;
mod echo;
mod efa;
mod efa_verbs;
mod exchange;
mod failing;
mod fault_table;
mod faults;
mod first_hour;
mod hostile;
mod hosts;
mod ipc;
mod jacobi;
mod lab;
mod ladder;
mod libraries;
mod litmus;
mod model;
mod moe;
mod mps;
mod museum;
mod nccl;
mod pages;
mod prolog;
mod proxy;
mod ranks;
mod replay;
mod report;
mod ring_shift;
mod run_all;
mod serve;
mod shmem;
mod soak;
mod soft_efa;
mod soft_efa2;
mod sqush;
mod stranger;
mod trace;
mod worst;
mod write;
