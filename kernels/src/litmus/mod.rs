//! Litmus tests on hardware (`ginlab litmus -d`): programs of two to four threads on one to three words, each repeated
//! on many independent locations.
//!
//! A *role* is one thread's part of a test: a pair of accesses ([`cuda_std::litmus`]). An *instance* executes a test
//! once per round, on its own locations. A *group* has one instance per lane of a warp. One role of a group is run by a
//! warp, by a CPU thread ([`on_cpu`]) or by a copy engine.
//!
//! ```text
//!   each round:  meet | random delay | pair of accesses | store what was read | meet | role 0 counts the outcomes
//! ```
//! The first meeting orders nothing, so that it cannot hide a reordering. The second one has fences of system scope on
//! both sides, because role 0 then reads the other roles' results.

mod participant;

pub use participant::*;

#[cfg(feature = "litmus")]
use cuda_std::kernel;
use cuda_std::memory::Word;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::memory::store_release_host_u64;
use cuda_std::{args, thread, warp};

/// Maximum number of roles of a test.
pub const ROLES: usize = 4;
/// Maximum number of words of a test.
pub const LOCATIONS: usize = 3;
/// Number of outcomes: one bit for each load of a test.
pub const OUTCOMES: usize = 16;
/// Number of instances of a group.
pub const LANES: u32 = warp::SIZE;
/// Number of sets of locations. Consecutive rounds use different sets.
pub const SETS: u32 = 4;
/// Distance in words between flags of different writers.
pub const APART: usize = 16;
/// Value of [`LitmusKernelArgs::stop`] after a wait that exceeded its timeout.
pub const LATE: u64 = 1;
/// Value of [`LitmusKernelArgs::stop`] after a result of another round was found.
pub const BROKEN: u64 = 2;

/// A role of a test.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LitmusRole {
    /// Number of the pair ([`cuda_std::litmus::AccessPair`]).
    pub kind: u32,
    /// Location of the first access.
    pub first: u32,
    /// Location of the second access.
    pub second: u32,
    /// Position of this role's bits in the outcome.
    pub shift: u32,
}

/// Arguments of all participants of a test.
#[args]
pub struct LitmusKernelArgs {
    /// The roles.
    pub roles: [LitmusRole; ROLES],
    /// Number of roles.
    pub count: u32,
    /// Bit set of the roles that this grid runs.
    pub own: u32,
    /// Whether all roles of a group run in one block.
    pub same_block: u32,
    /// Number of the scope of all accesses ([`cuda_std::litmus::MemoryScope`]).
    pub scope: u32,
    /// Number of the order of all pairs ([`cuda_std::litmus::AccessOrder`]) or of bulk stores ([`crate::litmus_bulk`]).
    pub order: u32,
    /// Number of groups.
    pub groups: u32,
    /// Number of words that the first store of role 0 writes. All words after the first are stored before it.
    pub payload: u32,
    /// Whether the outcome also has a bit for each of the first two locations. The bit states whether the final value
    /// is the one that the first store of a pair stored.
    pub reads_final: u32,
    /// Maximum number of repetitions of a pair of loads while the first one does not load the new value.
    pub polls: u32,
    /// Whether pairs of loads are repeated in each round instead of every other one.
    pub always_polls: u32,
    /// Maximum delay before a role's accesses, in cycles on a GPU and in nanoseconds on a CPU.
    pub jitter: u32,
    /// Number of the first round. Rounds are numbered over all launches.
    pub first_round: u64,
    /// Number of rounds.
    pub rounds: u64,
    /// Memory of each location: [`SETS`] sets of a location per instance.
    pub locations: [*const Word; LOCATIONS],
    /// Distance in words between the locations of two instances.
    pub stride: u32,
    /// One word per role and group, [`APART`] words apart: the last meeting that the role has reached.
    pub flags: *const Word,
    /// Two words per role and instance, used alternately. Each word is 256 times the number of the round plus 1, plus
    /// the bits.
    pub results: *const Word,
    /// Result: [`OUTCOMES`] counts per instance.
    pub counts: *mut u32,
    /// Maximum duration of a wait, in nanoseconds.
    pub timeout_ns: u64,
    /// Word in host memory that ends all waits if it is not 0.
    pub abort: *const Word,
    /// Word in host memory: set to [`LATE`] or [`BROKEN`] if a participant ends early.
    pub stop: *const Word,
}

impl LitmusKernelArgs {
    // The two functions select instead of indexing: a non-constant index would move the arguments to local memory.

    /// Returns a role.
    #[inline(always)]
    fn role(&self, number: u32) -> LitmusRole {
        let [first, second, third, fourth] = self.roles;
        match number {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        }
    }

    /// Returns the memory of a location.
    #[inline(always)]
    fn location(&self, number: u32) -> *const Word {
        let [x, y, z] = self.locations;
        match number {
            0 => x,
            1 => y,
            _ => z,
        }
    }
}

/// Runs all rounds of this thread's role. `access` executes the role's accesses and returns its bits.
///
/// # Safety
/// The requirements of [`litmus_threads`] must hold.
#[inline(always)]
pub(crate) unsafe fn run(args: &LitmusKernelArgs, access: impl Fn(&Participant<'_>, u32, u64) -> u32) {
    let (warps, warp) = (thread::block_dim_x() / LANES, thread::thread_idx_x() / LANES);
    let (role, group) = if args.same_block != 0 {
        let count = args.count.max(1);
        (warp % count, thread::block_idx_x() * (warps / count) + warp / count)
    } else {
        let own = args.own.count_ones().max(1);
        (nth(args.own, thread::block_idx_x() % own), thread::block_idx_x() / own * warps + warp)
    };
    if group >= args.groups || (args.own >> role) & 1 == 0 {
        return;
    }
    let (lane, mask) = (thread::thread_idx_x() % LANES, warp::launched_mask());
    let mine = Participant::new(args, role, group);
    let mut round = args.first_round;
    while round < args.first_round + args.rounds {
        // SAFETY: the caller guarantees that all pointers of the arguments are valid.
        let met = lane != 0 || unsafe { mine.start(round) };
        if !warp::all(mask, met) {
            return;
        }
        mine.delay(round);
        let bits = access(&mine, lane, round);
        // SAFETY: the caller guarantees that all pointers are valid, and no other participant writes this result.
        unsafe { mine.report(lane, round, bits) };
        warp::synchronize(mask);
        // SAFETY: the caller guarantees that all pointers are valid. The lanes' results precede the barrier of the
        // warp, and the fence of this lane is cumulative.
        let met = lane != 0 || unsafe { mine.end(round) };
        if !warp::all(mask, met) {
            return;
        }
        warp::synchronize(mask);
        if role == 0 {
            // SAFETY: the caller guarantees that all pointers are valid, and only role 0 of this instance accesses its
            // counts.
            unsafe { mine.count(lane, round, bits) };
        }
        round += 1;
    }
}

/// Returns the position of set bit number `index` of `bits`, counted from 0.
#[inline(always)]
fn nth(bits: u32, index: u32) -> u32 {
    let mut left = bits;
    for _ in 0..index {
        left &= left - 1;
    }
    left.trailing_zeros()
}

/// Runs the roles of `args.own` on GPU threads.
///
/// # Safety
/// All pointers must be valid, for the sizes given in the field docs, while the grid runs. The grid must have a warp
/// for each role and group. All roles must be run at the same time, by participants with the same arguments.
#[cfg(feature = "litmus")]
#[kernel(resident)]
pub unsafe fn litmus_threads(args: LitmusKernelArgs) {
    // SAFETY: the caller guarantees that the pointers are valid.
    unsafe { run(&args, |mine, lane, round| mine.access(lane, round)) };
}

/// Runs one role of the groups `groups` on the calling CPU thread.
///
/// # Safety
/// The requirements of [`litmus_threads`] must hold, and the CPU must be able to access all memory of `args`.
#[cfg(not(target_arch = "nvptx64"))]
pub unsafe fn on_cpu(args: &LitmusKernelArgs, role: u32, groups: core::ops::Range<u32>) {
    let mut bits = [0; LANES as usize];
    for round in args.first_round..args.first_round + args.rounds {
        for group in groups.clone() {
            let mine = Participant::on_cpu(args, role, group);
            // SAFETY: the caller guarantees that all pointers of the arguments are valid.
            unsafe {
                if !mine.start(round) {
                    return;
                }
                mine.delay(round);
                for (lane, bits) in (0..).zip(&mut bits) {
                    *bits = mine.access(lane, round);
                }
                for (lane, bits) in (0..).zip(bits) {
                    mine.report(lane, round, bits);
                }
                if !mine.end(round) {
                    return;
                }
                if role == 0 {
                    (0..).zip(bits).for_each(|(lane, bits)| mine.count(lane, round, bits));
                }
            }
        }
    }
}

/// Ends all waits of the participants that have this word as [`LitmusKernelArgs::abort`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn end_waits(abort: &Word) {
    store_release_host_u64(abort, 1);
}
