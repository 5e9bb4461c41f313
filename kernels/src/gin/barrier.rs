//! Teams and their barriers.

use super::report::{Call, NO_PE};
use super::{Context, SIGNALS, Scope, Signal, USER_SIGNALS, WorldView};
use crate::ring::Status;
use cuda_std::memory::{Word, add_relaxed_sys_u64, fence_acq_rel_sys, load_relaxed_gpu_u64, store_relaxed_gpu_u64};

/// Number of teams of a world, one per [`TeamKind`].
pub const TEAMS: usize = 3;
/// Number of signals of a team's barrier: one per round for up to 2^15 PEs, and one for teams that need a single round.
pub(super) const ROUNDS: u32 = 16;
/// Maximum size of a team whose PEs all signal each other directly, in one round; a larger team takes several rounds.
const ONE_ROUND: u32 = 16;

const _: () = assert!(USER_SIGNALS + TEAMS as u32 * ROUNDS == SIGNALS);

/// Kinds of teams, which differ in the PEs that they contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeamKind {
    /// All PEs.
    World = 0,
    /// The PEs on this PE's machine.
    Node = 1,
    /// The PEs that have the same local index on their machines as this PE, so that their rails pair.
    Rail = 2,
}

/// A team as seen by this PE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Team {
    /// Index of the team's first entry in [`WorldView::team_pes`].
    pub first: u32,
    /// Number of PEs.
    pub pes: u32,
    /// Index of this PE in the team.
    pub me: u32,
}

impl WorldView {
    /// Returns the team of this kind.
    #[inline(always)]
    pub fn team(&self, kind: TeamKind) -> Team {
        self.teams[kind as usize]
    }

    /// Returns the world number of PE `pe` of a team; `pe` is taken modulo the team's size. OpenSHMEM:
    /// `shmem_team_translate_pe`.
    #[inline(always)]
    pub fn pe_of(&self, team: &Team, pe: u32) -> u32 {
        // Avoids the division if possible, since it takes longer than the rest of the barrier's own work.
        let pe = if pe < team.pes { pe } else { pe % team.pes };
        if team.pes == self.pes {
            // The team has all PEs, in their order.
            return pe;
        }
        // SAFETY: the host uploads one entry per PE of each team, and `pe` is below the team's size.
        unsafe { *self.team_pes.add((team.first + pe) as usize) }
    }
}

impl<S: Scope> Context<S> {
    /// Waits until all PEs have called this function, each once, from one of its scopes. The puts of this context are
    /// then complete, and the scope's stores to its own heap are visible to PEs that get them. The barrier does not
    /// wait for puts of other contexts. OpenSHMEM: `shmem_barrier_all`.
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] if a PE does not arrive, the status with which the host ended the wait, or an
    /// earlier failure of this context.
    #[inline(always)]
    #[track_caller]
    pub fn barrier_all(&mut self) -> Result<(), Status> {
        self.barrier(TeamKind::World)
    }

    /// Like [`barrier_all`](Context::barrier_all), for the PEs of a team.
    ///
    /// # Errors
    /// Returns the same errors as [`barrier_all`](Context::barrier_all).
    #[inline(always)]
    #[track_caller]
    pub fn barrier(&mut self, kind: TeamKind) -> Result<(), Status> {
        self.flush();
        self.scope.sync();
        let team = self.world.team(kind);
        if self.world.outlet_count == 0 && team.pes <= ONE_ROUND {
            self.meet_mapped(kind, &team);
            return self.agreed();
        }
        // This fence follows the scope's barrier, so that it covers all threads of the scope, and precedes the signals
        // below.
        self.fenced();
        self.wait_for_tickets(Call::Barrier, NO_PE, 0);
        if self.scope.leads() && team.pes > 1 {
            self.meet(kind, &team);
        }
        self.agreed()
    }

    /// Like `meet`, if all heaps are mapped. The first threads each signal one PE, in parallel, and the first warp
    /// waits. Each of these threads fences after the scope's barrier, so each signal covers the preceding accesses of
    /// all threads.
    #[inline(always)]
    fn meet_mapped(&mut self, kind: TeamKind, team: &Team) {
        let flat = Signal(USER_SIGNALS + kind as u32 * ROUNDS + ROUNDS - 1);
        let (others, lanes) = (team.pes - 1, self.scope.size());
        let mut step = self.scope.rank();
        // SAFETY: `barriers` has one word per team.
        let word: &Word = unsafe { &*self.world.barriers.add(kind as usize) };
        // The word is loaded before the fence, which takes longer than the load. A later load would delay the wait by
        // one round trip to memory. (A lane that loads the word only after the leader's store below waits for a sum
        // that is not yet reached. Its polls fail, and it continues.)
        let passed = if self.scope.is_of_first_warp() { load_relaxed_gpu_u64(word) + 1 } else { 0 };
        self.unfenced = false;
        if step < others.max(1) {
            fence_acq_rel_sys();
            while step < others {
                let pe = team.me + 1 + step;
                let pe = self.world.pe_of(team, if pe < team.pes { pe } else { pe - team.pes });
                let heap = self.heap_of(pe);
                // SAFETY: every heap is mapped, and starts with the signals.
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

    /// Performs a barrier on one thread. A PE adds 1 to a signal of each PE that it meets; barrier `k` waits for `k`
    /// from each. A sum may include a PE's signal for the next barrier while another PE's signal for this barrier is in
    /// flight. The first PE has then passed this barrier, so all PEs have signalled it, and their preceding accesses
    /// are visible through its signal.
    #[inline(always)]
    fn meet(&mut self, kind: TeamKind, team: &Team) {
        let signals = Signal(USER_SIGNALS + kind as u32 * ROUNDS);
        // SAFETY: `barriers` has one word per team.
        let word: &Word = unsafe { &*self.world.barriers.add(kind as usize) };
        let one_round = team.pes <= ONE_ROUND;
        let flat = signals.at(ROUNDS - 1);
        if one_round {
            for step in 1..team.pes {
                self.tell(flat, self.world.pe_of(team, (team.me + step) % team.pes));
            }
        }
        // The word is loaded after the signals, which do not depend on it, so that the latencies overlap.
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
        // A failure is kept in this thread until the scope agrees.
        let _ = self.raise(Call::Barrier, signal, 1, pe, true);
    }
}
