//! Table of litmus tests: the accesses of each role, the weak outcome, and the orders that exclude it.

use cuda_std::litmus::{AccessOrder, AccessPair};
use kernels::litmus::{LitmusRole, ROLES};

/// A test: its roles, and the outcome that sequential consistency excludes.
#[derive(Debug)]
pub struct LitmusTest {
    pub name: &'static str,
    /// Test of the worst-case network with the same shape.
    pub network: Option<&'static str>,
    /// Kind of each pair, its locations, and the position of its bits in the outcome.
    roles: &'static [(AccessPair, u32, u32, u32)],
    /// The weak outcome.
    pub weak: usize,
    /// Number of bits of an outcome.
    pub bits: u32,
    /// Whether the two bits of the outcome are about final values.
    pub reads_final: bool,
    /// Whether role 0 writes several words, of which all must be new.
    pub has_payload: bool,
    /// Whether acquire loads, release stores and acquire-release fences suffice to exclude the weak outcome. Otherwise,
    /// only sequentially consistent fences exclude it.
    is_causal: bool,
    /// Whether a role stores two words, which a read-back can order.
    pub reads_back: bool,
}

const X: u32 = 0;
const Y: u32 = 1;
const Z: u32 = 2;

const BASE: LitmusTest = LitmusTest {
    name: "",
    network: None,
    roles: &[],
    weak: 0,
    bits: 2,
    reads_final: false,
    has_payload: false,
    is_causal: true,
    reads_back: false,
};

/// Two roles: a writer of X, then Y, and a reader of Y, then X. Weak: Y is new, and X is old.
const MESSAGE: LitmusTest = LitmusTest {
    roles: &[(AccessPair::WriteWrite, X, Y, 0), (AccessPair::ReadRead, Y, X, 0)],
    weak: 0b01,
    reads_back: true,
    ..BASE
};

/// All tests. Each bit of an outcome represents a load of a role, in order. The bit is set if the load returned the new
/// value.
pub static TESTS: [LitmusTest; 8] = [
    LitmusTest { name: "message-passing", network: Some("message-passing"), ..MESSAGE },
    LitmusTest { name: "signal-after-bytes", network: Some("signal-after-bytes"), has_payload: true, ..MESSAGE },
    // Each role stores one word and loads the other one. Weak: both are old.
    LitmusTest {
        name: "store-buffering",
        network: Some("store-buffering"),
        roles: &[(AccessPair::WriteRead, X, Y, 0), (AccessPair::WriteRead, Y, X, 1)],
        weak: 0b00,
        is_causal: false,
        ..BASE
    },
    // Each role loads one word and stores the other one. Weak: both are new.
    LitmusTest {
        name: "load-buffering",
        roles: &[(AccessPair::ReadWrite, X, Y, 0), (AccessPair::ReadWrite, Y, X, 1)],
        weak: 0b11,
        ..BASE
    },
    // Both roles store both words, in opposite order. Weak: the first store of each is the last one of its word.
    LitmusTest {
        name: "2+2w",
        roles: &[(AccessPair::WriteWrite, X, Y, 0), (AccessPair::WriteWrite, Y, X, 0)],
        weak: 0b11,
        reads_final: true,
        is_causal: false,
        reads_back: true,
        ..BASE
    },
    // Two writers, and two readers that load both words in opposite order. Weak: each sees only the first new.
    LitmusTest {
        name: "iriw",
        roles: &[
            (AccessPair::Write, X, X, 0),
            (AccessPair::Write, Y, Y, 0),
            (AccessPair::ReadRead, X, Y, 0),
            (AccessPair::ReadRead, Y, X, 2),
        ],
        weak: 0b0101,
        bits: 4,
        is_causal: false,
        ..BASE
    },
    // Cumulativity: role 1 sees X and stores Y, role 2 sees Y and loads X. Weak: X is old.
    LitmusTest {
        name: "wrc",
        network: Some("cumulativity"),
        roles: &[(AccessPair::Write, X, X, 0), (AccessPair::ReadWrite, X, Y, 0), (AccessPair::ReadRead, Y, X, 1)],
        weak: 0b011,
        bits: 3,
        ..BASE
    },
    // Cumulativity: role 0 stores X and Y, role 1 sees Y and stores Z, role 2 sees Z and loads X. Weak: X is old.
    LitmusTest {
        name: "isa2",
        network: Some("cumulativity"),
        roles: &[(AccessPair::WriteWrite, X, Y, 0), (AccessPair::ReadWrite, Y, Z, 0), (AccessPair::ReadRead, Z, X, 1)],
        weak: 0b011,
        bits: 3,
        reads_back: true,
        ..BASE
    },
];

impl LitmusTest {
    /// Returns the test with this name.
    pub fn named(name: &str) -> &'static LitmusTest {
        TESTS.iter().find(|test| test.name == name).unwrap_or(&TESTS[0])
    }

    /// Returns the number of roles.
    pub fn count(&self) -> u32 {
        self.roles.len() as u32
    }

    /// Returns the roles for the kernel.
    pub fn for_kernel(&self) -> [LitmusRole; ROLES] {
        let mut all = [LitmusRole::default(); ROLES];
        for (to, &(kind, first, second, shift)) in all.iter_mut().zip(self.roles) {
            *to = LitmusRole { kind: kind as u32, first, second, shift };
        }
        all
    }

    /// Returns whether the memory model permits the weak outcome if the accesses of each role have this order. Assumes
    /// that the scope includes all roles.
    pub fn allowed_with(&self, order: AccessOrder) -> bool {
        match order {
            AccessOrder::Nothing | AccessOrder::ReadBack => true,
            AccessOrder::ReleaseAcquire | AccessOrder::AcquireRelease => !self.is_causal,
            AccessOrder::Sequential => false,
        }
    }
}
