//! Table of litmus tests: the accesses of each role, the weak outcome, and the orders that exclude it.

use cuda_std::litmus::{Order, Pair};
use kernels::litmus::{ROLES, Role};

/// A test: its roles, and the outcome that sequential consistency excludes.
#[derive(Debug)]
pub struct Test {
    pub name: &'static str,
    /// Test of the worst-case network with the same shape.
    pub network: Option<&'static str>,
    /// Kind of each pair, its locations, and the position of its bits in the outcome.
    roles: &'static [(Pair, u32, u32, u32)],
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

const BASE: Test = Test {
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
const MESSAGE: Test =
    Test { roles: &[(Pair::WriteWrite, X, Y, 0), (Pair::ReadRead, Y, X, 0)], weak: 0b01, reads_back: true, ..BASE };

/// All tests. Each bit of an outcome represents a load of a role, in order. The bit is set if the load returned the new
/// value.
pub static TESTS: [Test; 8] = [
    Test { name: "message-passing", network: Some("message-passing"), ..MESSAGE },
    Test { name: "signal-after-bytes", network: Some("signal-after-bytes"), has_payload: true, ..MESSAGE },
    // Each role stores one word and loads the other one. Weak: both are old.
    Test {
        name: "store-buffering",
        network: Some("store-buffering"),
        roles: &[(Pair::WriteRead, X, Y, 0), (Pair::WriteRead, Y, X, 1)],
        weak: 0b00,
        is_causal: false,
        ..BASE
    },
    // Each role loads one word and stores the other one. Weak: both are new.
    Test {
        name: "load-buffering",
        roles: &[(Pair::ReadWrite, X, Y, 0), (Pair::ReadWrite, Y, X, 1)],
        weak: 0b11,
        ..BASE
    },
    // Both roles store both words, in opposite order. Weak: the first store of each is the last one of its word.
    Test {
        name: "2+2w",
        roles: &[(Pair::WriteWrite, X, Y, 0), (Pair::WriteWrite, Y, X, 0)],
        weak: 0b11,
        reads_final: true,
        is_causal: false,
        reads_back: true,
        ..BASE
    },
    // Two writers, and two readers that load both words in opposite order. Weak: each sees only the first new.
    Test {
        name: "iriw",
        roles: &[(Pair::Write, X, X, 0), (Pair::Write, Y, Y, 0), (Pair::ReadRead, X, Y, 0), (Pair::ReadRead, Y, X, 2)],
        weak: 0b0101,
        bits: 4,
        is_causal: false,
        ..BASE
    },
    // Cumulativity: role 1 sees X and stores Y, role 2 sees Y and loads X. Weak: X is old.
    Test {
        name: "wrc",
        network: Some("cumulativity"),
        roles: &[(Pair::Write, X, X, 0), (Pair::ReadWrite, X, Y, 0), (Pair::ReadRead, Y, X, 1)],
        weak: 0b011,
        bits: 3,
        ..BASE
    },
    // Cumulativity: role 0 stores X and Y, role 1 sees Y and stores Z, role 2 sees Z and loads X. Weak: X is old.
    Test {
        name: "isa2",
        network: Some("cumulativity"),
        roles: &[(Pair::WriteWrite, X, Y, 0), (Pair::ReadWrite, Y, Z, 0), (Pair::ReadRead, Z, X, 1)],
        weak: 0b011,
        bits: 3,
        reads_back: true,
        ..BASE
    },
];

impl Test {
    /// Returns the test with this name.
    pub fn named(name: &str) -> &'static Test {
        TESTS.iter().find(|test| test.name == name).unwrap_or(&TESTS[0])
    }

    /// Returns the number of roles.
    pub fn count(&self) -> u32 {
        self.roles.len() as u32
    }

    /// Returns the roles for the kernel.
    pub fn for_kernel(&self) -> [Role; ROLES] {
        let mut all = [Role::default(); ROLES];
        for (to, &(kind, first, second, shift)) in all.iter_mut().zip(self.roles) {
            *to = Role { kind: kind as u32, first, second, shift };
        }
        all
    }

    /// Returns whether the memory model permits the weak outcome if the accesses of each role have this order. Assumes
    /// that the scope includes all roles.
    pub fn allowed_with(&self, order: Order) -> bool {
        match order {
            Order::Nothing | Order::ReadBack => true,
            Order::ReleaseAcquire | Order::AcquireRelease => !self.is_causal,
            Order::Sequential => false,
        }
    }
}
