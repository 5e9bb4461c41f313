//! One role of one group: its meetings, accesses and results.

use super::{APART, BROKEN, LANES, LATE, LitmusKernelArgs, LitmusRole, OUTCOMES, SETS};
use cuda_std::litmus::{AccessOrder, AccessPair, MemoryScope, load_relaxed, pair, store_relaxed};
use cuda_std::memory::{Word, fence_acq_rel_sys, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::thread;

/// Number of polls of a flag between two checks of the clock and of the host's word, which may be across PCIe.
const POLLS: u32 = 256;

/// One role of one group.
#[derive(Clone, Copy, Debug)]
pub struct Participant<'a> {
    args: &'a LitmusKernelArgs,
    role: u32,
    group: u32,
    /// The accesses of the role.
    does: LitmusRole,
    /// Whether the participant is a thread of the CPU, which spins without a system call.
    spins: bool,
}

impl<'a> Participant<'a> {
    /// Creates the participant for a role of a group.
    #[inline(always)]
    pub fn new(args: &'a LitmusKernelArgs, role: u32, group: u32) -> Participant<'a> {
        Participant { args, role, group, does: args.role(role), spins: false }
    }

    /// Creates the participant for a role of a group, run by a CPU thread outside an emulated grid.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn on_cpu(args: &'a LitmusKernelArgs, role: u32, group: u32) -> Participant<'a> {
        Participant { spins: true, ..Participant::new(args, role, group) }
    }

    #[inline(always)]
    fn relax(&self) {
        if self.spins {
            core::hint::spin_loop();
        } else {
            thread::relax();
        }
    }

    /// Returns the arguments of the test.
    #[inline(always)]
    pub fn args(&self) -> &'a LitmusKernelArgs {
        self.args
    }

    /// Returns the index of a lane's instance.
    #[inline(always)]
    fn instance(&self, lane: u32) -> u32 {
        self.group * LANES + lane
    }

    /// Returns the index of an instance's location in its memory. The distances between the locations of an instance
    /// change from round to round. The locations stay within those of the group, because other groups may be in other
    /// rounds, in which they would use the same set.
    #[inline(always)]
    pub fn index(&self, location: u32, lane: u32, round: u64) -> u32 {
        let set = (round % u64::from(SETS)) as u32;
        let moved = (round as u32).wrapping_mul(2 * location + 1);
        (set * self.args.groups + self.group) * LANES + lane.wrapping_add(moved) % LANES
    }

    /// Returns the first word of an instance's location.
    ///
    /// # Safety
    /// The memory of the location must be valid.
    #[inline(always)]
    pub unsafe fn word(&self, location: u32, lane: u32, round: u64) -> *const Word {
        let index = self.index(location, lane, round) as usize;
        // SAFETY: the caller guarantees that the memory has a location per set and instance.
        unsafe { self.args.location(location).add(index * self.args.stride as usize) }
    }

    /// Returns the value of the first store of a role. The second store uses the next larger value. Values of later
    /// rounds are larger.
    #[inline(always)]
    pub fn value(round: u64) -> u64 {
        2 * (round + 1)
    }

    /// Waits until all roles of this group have started the round. Does not order memory accesses. Returns whether all
    /// have started; otherwise the test must end.
    ///
    /// # Safety
    /// The pointers of the arguments must be valid.
    #[inline(always)]
    pub unsafe fn start(&self, round: u64) -> bool {
        // SAFETY: the caller guarantees that the flags are valid.
        unsafe { self.meet(2 * round + 1) }
    }

    /// Waits until all roles of this group have ended the round. Accesses that precede the call of any role are then
    /// visible to all roles. Returns whether all have ended; otherwise the test must end.
    ///
    /// # Safety
    /// The pointers of the arguments must be valid.
    #[inline(always)]
    pub unsafe fn end(&self, round: u64) -> bool {
        fence_acq_rel_sys();
        // SAFETY: the caller guarantees that the flags are valid.
        let met = unsafe { self.meet(2 * round + 2) };
        fence_acq_rel_sys();
        met
    }

    #[inline(always)]
    unsafe fn flag(&self, role: u32) -> &'a Word {
        // SAFETY: the caller guarantees that there is a flag per role and group.
        unsafe { &*self.args.flags.add((role * self.args.groups + self.group) as usize * APART) }
    }

    /// Stores the number of a meeting in this role's flag, and waits until the flags of all roles contain it.
    #[inline(always)]
    unsafe fn meet(&self, number: u64) -> bool {
        // SAFETY: the caller guarantees that the flags are valid.
        store_relaxed_sys_u64(unsafe { self.flag(self.role) }, number);
        let mut deadline = 0;
        let mut role = 0;
        while role < self.args.count {
            let mut polls = 0;
            // SAFETY: the caller guarantees that there is a flag per role and group.
            while load_relaxed_sys_u64(unsafe { self.flag(role) }) < number {
                self.relax();
                polls += 1;
                if polls == POLLS {
                    polls = 0;
                    thread::relax();
                    let now = thread::global_timer_ns();
                    if deadline == 0 {
                        deadline = now + self.args.timeout_ns;
                    }
                    // SAFETY: the caller guarantees that `abort` and `stop` are valid.
                    unsafe {
                        if load_relaxed_sys_u64(&*self.args.abort) != 0 {
                            return false;
                        }
                        if now > deadline {
                            store_relaxed_sys_u64(&*self.args.stop, LATE);
                            return false;
                        }
                    }
                }
            }
            role += 1;
        }
        true
    }

    /// Waits for a random time, which is the same for all lanes. Depending on the round, its upper limit is the maximum
    /// or a fraction of it.
    #[inline(always)]
    pub fn delay(&self, round: u64) {
        let most = u64::from(self.args.jitter) >> (4 * (round % 4));
        if most == 0 {
            return;
        }
        let mut random = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(self.group * 4 + self.role + 1) << 32);
        random = (random ^ (random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let end = thread::clock() + (random >> 33) % most;
        while thread::clock() < end {
            self.relax();
        }
    }

    /// Executes the accesses of this role. Returns a bit per load, which is set if the load returned the value of this
    /// round.
    ///
    /// # Safety
    /// The memory of the locations must be valid.
    #[inline(always)]
    pub unsafe fn access(&self, lane: u32, round: u64) -> u32 {
        let role = self.does;
        let (kind, scope, order) =
            (AccessPair::of(role.kind), MemoryScope::of(self.args.scope), AccessOrder::of(self.args.order));
        // SAFETY: the caller guarantees that the memory of the locations is valid.
        let words = unsafe { [&*self.word(role.first, lane, round), &*self.word(role.second, lane, round)] };
        let value = Self::value(round);
        let new = |loaded: u64| u32::from(loaded / 2 == value / 2);
        if kind == AccessPair::WriteWrite && self.role == 0 {
            // SAFETY: `words[0]` is the first word of a location.
            unsafe { self.each_more(words[0], |word| store_relaxed(scope, word, value)) };
        }
        let repeats = kind == AccessPair::ReadRead && (self.args.always_polls != 0 || round % 2 == 1);
        let mut left = if repeats { self.args.polls } else { 1 };
        loop {
            let loaded = pair(kind, scope, order, words, [value, value + 1]);
            left -= 1;
            if left > 0 && new(loaded[0]) == 0 {
                self.relax();
                continue;
            }
            return match kind {
                AccessPair::WriteWrite | AccessPair::Write => 0,
                AccessPair::WriteRead => new(loaded[1]),
                AccessPair::ReadWrite => new(loaded[0]),
                AccessPair::ReadRead => {
                    let mut all = new(loaded[1]);
                    // SAFETY: `words[1]` is the first word of a location.
                    unsafe { self.each_more(words[1], |word| all &= new(load_relaxed(scope, word))) };
                    new(loaded[0]) | (all << 1)
                }
            };
        }
    }

    /// Calls `visit` for each word of the payload after the first one.
    ///
    /// # Safety
    /// `first` must be the first word of a location.
    #[inline(always)]
    unsafe fn each_more(&self, first: &Word, mut visit: impl FnMut(&Word)) {
        let mut more = 1;
        while more < self.args.payload {
            // SAFETY: the caller guarantees a location, which has as many words as the payload.
            visit(unsafe { &*core::ptr::from_ref(first).add(more as usize) });
            more += 1;
        }
    }

    /// Stores the bits of a lane for role 0.
    ///
    /// # Safety
    /// The results must be valid, and no other participant may write this one.
    #[inline(always)]
    pub unsafe fn report(&self, lane: u32, round: u64, bits: u32) {
        // SAFETY: the caller guarantees two results per role and instance.
        let result = unsafe { &*self.result(self.role, lane, round) };
        store_relaxed_sys_u64(result, ((round + 1) << 8) | u64::from(bits));
    }

    /// Returns the result word of a role. Consecutive rounds use different words, because a role may report the next
    /// round while lanes of role 0 still count this one.
    #[inline(always)]
    unsafe fn result(&self, role: u32, lane: u32, round: u64) -> *const Word {
        let number = (round % 2) as u32 * self.args.count + role;
        let index = number * self.args.groups * LANES + self.instance(lane);
        // SAFETY: the caller guarantees two results per role and instance.
        unsafe { self.args.results.add(index as usize) }
    }

    /// Counts the outcome of a lane's instance, after [`end`](Participant::end). Called by role 0, whose bits are
    /// `bits`.
    ///
    /// # Safety
    /// The pointers of the arguments must be valid, and no other participant may access the counts of this instance.
    #[inline(always)]
    pub unsafe fn count(&self, lane: u32, round: u64, bits: u32) {
        let mut outcome = bits << self.does.shift;
        let mut role = 1;
        while role < self.args.count {
            // SAFETY: the caller guarantees that the results are valid.
            let result = load_relaxed_sys_u64(unsafe { &*self.result(role, lane, round) });
            if result >> 8 != round + 1 {
                // SAFETY: the caller guarantees that `stop` is valid.
                store_relaxed_sys_u64(unsafe { &*self.args.stop }, BROKEN);
                return;
            }
            outcome |= (result as u32 & 0xff) << self.args.role(role).shift;
            role += 1;
        }
        if self.args.reads_final != 0 {
            for location in 0..2 {
                // SAFETY: the caller guarantees that the memory of the locations is valid.
                let last = load_relaxed(MemoryScope::System, unsafe { &*self.word(location, lane, round) });
                outcome |= u32::from(last == Self::value(round)) << location;
            }
        }
        let index = self.instance(lane) as usize * OUTCOMES + (outcome as usize & (OUTCOMES - 1));
        // SAFETY: the caller guarantees the counts, and that only this thread accesses those of this instance.
        unsafe { *self.args.counts.add(index) += 1 };
    }
}
