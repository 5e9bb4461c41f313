//! Teams, and the barrier of their PEs.

use super::report::{Call, NO_PE};
use super::{Context, SIGNALS, Scope, Signal, USER_SIGNALS, World};
use crate::ring::Status;
use cuda_std::memory::{Word, add_relaxed_sys_u64, fence_acq_rel_sys, load_relaxed_gpu_u64, store_relaxed_gpu_u64};

/// Teams of a world: [`TeamKind`].
pub const TEAMS: usize = 3;
/// Signals of a team's barrier: one for each round, for up to 2^15 PEs, and one for teams that need one round.
pub(super) const ROUNDS: u32 = 16;
/// A team of up to so many signals everyone from everyone, in one trip; a larger one in rounds.
const ONE_ROUND: u32 = 16;

const _: () = assert!(USER_SIGNALS + TEAMS as u32 * ROUNDS == SIGNALS);

/// Which PEs belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamKind {
    /// All.
    World = 0,
    /// Those on this PE's machine.
    Node = 1,
    /// Those that have this PE's place on their machines: whose rails pair.
    Rail = 2,
}

/// A team as this PE sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Team {
    /// Its first entry in [`World::team_pes`].
    pub first: u32,
    /// PEs.
    pub pes: u32,
    /// This PE's number in it.
    pub me: u32,
}

impl World {
    /// A team.
    #[inline(always)]
    pub fn team(&self, kind: TeamKind) -> Team {
        self.teams[kind as usize]
    }

    /// The number in the world of PE `pe` of a team, below its number of PEs. OpenSHMEM: `shmem_team_translate_pe`.
    #[inline(always)]
    pub fn pe_of(&self, team: &Team, pe: u32) -> u32 {
        // Mostly without a division, which takes longer than what a barrier does besides.
        let pe = if pe < team.pes { pe } else { pe % team.pes };
        if team.pes == self.pes {
            // All of them, in their order: nothing to look up.
            return pe;
        }
        // SAFETY: the host uploads as many entries as the teams have PEs; this one is below.
        unsafe { *self.team_pes.add((team.first + pe) as usize) }
    }
}

impl<S: Scope> Context<S> {
    /// Returns when all PEs have called it, once each, with one scope of theirs; before that the puts of this context are complete and
    /// the scope's stores to its own heap are visible to whoever gets them. Puts of other contexts are theirs to wait for. OpenSHMEM:
    /// `shmem_barrier_all`.
    ///
    /// # Errors
    /// [`Status::DEADLINE`] when a PE does not come, the reason the host gave, or an earlier failure of this context.
    #[inline(always)]
    #[track_caller]
    pub fn barrier_all(&mut self) -> Result<(), Status> {
        self.barrier(TeamKind::World)
    }

    /// As [`barrier_all`](Context::barrier_all), for a team's PEs.
    ///
    /// # Errors
    /// As [`barrier_all`](Context::barrier_all).
    #[inline(always)]
    #[track_caller]
    pub fn barrier(&mut self, kind: TeamKind) -> Result<(), Status> {
        self.flush();
        self.scope.sync();
        let team = self.world.team(kind);
        if self.world.ring_count == 0 && team.pes <= ONE_ROUND {
            self.meet_mapped(kind, &team);
            return self.agreed();
        }
        // Behind the barrier of the scope, so it stands for all of its threads; the signals below come after it.
        self.fenced();
        self.wait_for_tickets(Call::Barrier, NO_PE, 0);
        if self.scope.leads() && team.pes > 1 {
            self.meet(kind, &team);
        }
        self.agreed()
    }

    /// As `meet`, where all heaps are mapped: the first threads tell one PE each, at once, and the first warp waits. Each fences for itself,
    /// behind the barrier of the scope, so each of the signals stands for what all threads did before.
    #[inline(always)]
    fn meet_mapped(&mut self, kind: TeamKind, team: &Team) {
        let flat = Signal(USER_SIGNALS + kind as u32 * ROUNDS + ROUNDS - 1);
        let (others, lanes) = (team.pes - 1, self.scope.size());
        let mut step = self.scope.rank();
        // SAFETY: one word for each team.
        let word: &Word = unsafe { &*self.world.barriers.add(kind as usize) };
        // (A lane that reads it behind what the first one stores below waits for a sum that is not there yet: it looks in vain, and goes.)
        // Before the fence, which takes longer than this trip to memory: behind it the wait would begin a trip later.
        let passed = if self.scope.is_of_first_warp() { load_relaxed_gpu_u64(word) + 1 } else { 0 };
        self.unfenced = false;
        if step < others.max(1) {
            fence_acq_rel_sys();
            while step < others {
                let pe = team.me + 1 + step;
                let pe = self.world.pe_of(team, if pe < team.pes { pe } else { pe - team.pes });
                let heap = self.heap_of(pe);
                // SAFETY: every heap is mapped, and begins with the signals.
                add_relaxed_sys_u64(unsafe { super::signal::signal_word(heap, flat) }, 1);
                step += lanes;
            }
        }
        if others > 0 {
            self.wait_signal(Call::Barrier, NO_PE, flat, passed * others as u64);
            if self.scope.leads() {
                store_relaxed_gpu_u64(word, passed);
            }
        }
    }

    /// By one thread. A PE adds one to a signal of each it meets; the k-th barrier waits for k of everyone. A count may be made up by a
    /// PE's signal for the next barrier while another one's for this is under way: that PE has then passed this one, and so has heard
    /// of all; what they did before is visible through it.
    #[inline(always)]
    fn meet(&mut self, kind: TeamKind, team: &Team) {
        let signals = Signal(USER_SIGNALS + kind as u32 * ROUNDS);
        // SAFETY: one word for each team.
        let word: &Word = unsafe { &*self.world.barriers.add(kind as usize) };
        let one_round = team.pes <= ONE_ROUND;
        let flat = signals.at(ROUNDS - 1);
        if one_round {
            for step in 1..team.pes {
                self.tell(flat, self.world.pe_of(team, (team.me + step) % team.pes));
            }
        }
        // Read behind the signals, which do not need it: its trip to memory overlaps with theirs.
        let passed = load_relaxed_gpu_u64(word) + 1;
        if one_round {
            self.wait_signal(Call::Barrier, NO_PE, flat, passed * (team.pes as u64 - 1));
        } else {
            let (mut round, mut step) = (0, 1);
            while step < team.pes {
                self.tell(signals.at(round), self.world.pe_of(team, (team.me + step) % team.pes));
                self.wait_signal(Call::Barrier, NO_PE, signals.at(round), passed);
                (round, step) = (round + 1, step * 2);
            }
        }
        store_relaxed_gpu_u64(word, passed);
    }

    #[inline(always)]
    fn tell(&mut self, signal: Signal, pe: u32) {
        // Its failure stays in this thread until the scope agrees.
        let _ = self.raise(Call::Barrier, signal, 1, pe, true);
    }
}
