//! The PTX of each pair.

/// A pair of one scope.
macro_rules! pair_as {
    ($scope:literal, $kind:expr, $order:expr, $words:expr, $values:expr) => {
        match ($kind, $order) {
            (AccessPair::WriteWrite, AccessOrder::Nothing) => {
                write_write!($words, $values, concat!("st.relaxed.", $scope), "", concat!("st.relaxed.", $scope))
            }
            (AccessPair::WriteWrite, AccessOrder::ReleaseAcquire) => {
                write_write!($words, $values, concat!("st.relaxed.", $scope), "", concat!("st.release.", $scope))
            }
            (AccessPair::WriteWrite, AccessOrder::AcquireRelease) => write_write!(
                $words,
                $values,
                concat!("st.relaxed.", $scope),
                concat!("fence.acq_rel.", $scope, "; "),
                concat!("st.relaxed.", $scope)
            ),
            (AccessPair::WriteWrite, AccessOrder::Sequential) => write_write!(
                $words,
                $values,
                concat!("st.relaxed.", $scope),
                concat!("fence.sc.", $scope, "; "),
                concat!("st.relaxed.", $scope)
            ),
            (AccessPair::WriteWrite, AccessOrder::ReadBack) => write_read_back_write!($words, $values, $scope),
            (AccessPair::WriteRead, AccessOrder::Nothing) => {
                write_read!($words, $values, concat!("st.relaxed.", $scope), "", concat!("ld.relaxed.", $scope))
            }
            (AccessPair::WriteRead, AccessOrder::ReleaseAcquire | AccessOrder::ReadBack) => {
                write_read!($words, $values, concat!("st.release.", $scope), "", concat!("ld.acquire.", $scope))
            }
            (AccessPair::WriteRead, AccessOrder::AcquireRelease) => write_read!(
                $words,
                $values,
                concat!("st.relaxed.", $scope),
                concat!("fence.acq_rel.", $scope, "; "),
                concat!("ld.relaxed.", $scope)
            ),
            (AccessPair::WriteRead, AccessOrder::Sequential) => write_read!(
                $words,
                $values,
                concat!("st.relaxed.", $scope),
                concat!("fence.sc.", $scope, "; "),
                concat!("ld.relaxed.", $scope)
            ),
            (AccessPair::ReadWrite, AccessOrder::Nothing) => {
                read_write!($words, $values, concat!("ld.relaxed.", $scope), "", concat!("st.relaxed.", $scope))
            }
            (AccessPair::ReadWrite, AccessOrder::ReleaseAcquire | AccessOrder::ReadBack) => {
                read_write!($words, $values, concat!("ld.acquire.", $scope), "", concat!("st.release.", $scope))
            }
            (AccessPair::ReadWrite, AccessOrder::AcquireRelease) => read_write!(
                $words,
                $values,
                concat!("ld.relaxed.", $scope),
                concat!("fence.acq_rel.", $scope, "; "),
                concat!("st.relaxed.", $scope)
            ),
            (AccessPair::ReadWrite, AccessOrder::Sequential) => read_write!(
                $words,
                $values,
                concat!("ld.relaxed.", $scope),
                concat!("fence.sc.", $scope, "; "),
                concat!("st.relaxed.", $scope)
            ),
            (AccessPair::ReadRead, AccessOrder::Nothing) => {
                read_read!($words, concat!("ld.relaxed.", $scope), "", concat!("ld.relaxed.", $scope))
            }
            (AccessPair::ReadRead, AccessOrder::ReleaseAcquire | AccessOrder::ReadBack) => {
                read_read!($words, concat!("ld.acquire.", $scope), "", concat!("ld.relaxed.", $scope))
            }
            (AccessPair::ReadRead, AccessOrder::AcquireRelease) => read_read!(
                $words,
                concat!("ld.relaxed.", $scope),
                concat!("fence.acq_rel.", $scope, "; "),
                concat!("ld.relaxed.", $scope)
            ),
            (AccessPair::ReadRead, AccessOrder::Sequential) => read_read!(
                $words,
                concat!("ld.relaxed.", $scope),
                concat!("fence.sc.", $scope, "; "),
                concat!("ld.relaxed.", $scope)
            ),
            (AccessPair::Write, AccessOrder::ReleaseAcquire | AccessOrder::ReadBack) => {
                store!(concat!("st.release.", $scope), $words[0], $values[0]);
                [0, 0]
            }
            (AccessPair::Write, _) => {
                store!(concat!("st.relaxed.", $scope), $words[0], $values[0]);
                [0, 0]
            }
        }
    };
}

macro_rules! write_write {
    ($words:expr, $values:expr, $first:expr, $between:expr, $second:expr) => {{
        // SAFETY: the references are valid for writes (a `Word` is interior mutable), and all accesses are atomic.
        unsafe {
            core::arch::asm!(
                concat!($first, ".global.u64 [{x}], {a}; ", $between, $second, ".global.u64 [{y}], {b};"),
                x = in(reg64) $words[0].pointer(), y = in(reg64) $words[1].pointer(), a = in(reg64) $values[0],
                b = in(reg64) $values[1], options(nostack));
        }
        [0, 0]
    }};
}

// The top bit of the loaded value is never set, but the compiler does not know this: the second store must wait for the
// load.
macro_rules! write_read_back_write {
    ($words:expr, $values:expr, $scope:literal) => {{
        // SAFETY: the requirements are the same as for two stores, and the first word is also valid for reads.
        unsafe {
            core::arch::asm!(
                concat!("{{ .reg .b64 back; st.relaxed.", $scope, ".global.u64 [{x}], {a}; ld.relaxed.", $scope,
                        ".global.u64 back, [{x}]; shr.u64 back, back, 63; add.u64 back, back, {b}; st.relaxed.",
                        $scope, ".global.u64 [{y}], back; }}"),
                x = in(reg64) $words[0].pointer(), y = in(reg64) $words[1].pointer(), a = in(reg64) $values[0],
                b = in(reg64) $values[1], options(nostack));
        }
        [0, 0]
    }};
}

macro_rules! write_read {
    ($words:expr, $values:expr, $first:expr, $between:expr, $second:expr) => {{
        let out: u64;
        // SAFETY: the references are valid for reads and writes, and all accesses are atomic.
        unsafe {
            core::arch::asm!(
                concat!($first, ".global.u64 [{x}], {a}; ", $between, $second, ".global.u64 {out}, [{y}];"),
                x = in(reg64) $words[0].pointer(), y = in(reg64) $words[1].pointer(), a = in(reg64) $values[0],
                out = lateout(reg64) out, options(nostack));
        }
        [0, out]
    }};
}

macro_rules! read_write {
    ($words:expr, $values:expr, $first:expr, $between:expr, $second:expr) => {{
        let out: u64;
        // SAFETY: the references are valid for reads and writes, and all accesses are atomic. The output is written
        // before the last input is read, so it must not share a register with one (`out`).
        unsafe {
            core::arch::asm!(
                concat!($first, ".global.u64 {out}, [{x}]; ", $between, $second, ".global.u64 [{y}], {b};"),
                x = in(reg64) $words[0].pointer(), y = in(reg64) $words[1].pointer(), b = in(reg64) $values[1],
                out = out(reg64) out, options(nostack));
        }
        [out, 0]
    }};
}

macro_rules! read_read {
    ($words:expr, $first:expr, $between:expr, $second:expr) => {{
        let (first, second): (u64, u64);
        // SAFETY: the references are valid for reads, and all accesses are atomic.
        unsafe {
            core::arch::asm!(
                concat!($first, ".global.u64 {first}, [{x}]; ", $between, $second, ".global.u64 {second}, [{y}];"),
                x = in(reg64) $words[0].pointer(), y = in(reg64) $words[1].pointer(), first = out(reg64) first,
                second = out(reg64) second, options(nostack));
        }
        [first, second]
    }};
}

macro_rules! store {
    ($store:expr, $word:expr, $value:expr) => {
        // SAFETY: the reference is valid for writes, and all accesses are atomic.
        unsafe {
            core::arch::asm!(concat!($store, ".global.u64 [{x}], {a};"), x = in(reg64) $word.pointer(),
                 a = in(reg64) $value, options(nostack));
        }
    };
}

macro_rules! store_as {
    ($scope:literal, $word:expr, $value:expr) => {
        store!(concat!("st.relaxed.", $scope), $word, $value)
    };
}

macro_rules! load_as {
    ($scope:literal, $word:expr) => {
        // SAFETY: the reference is valid for reads, and all accesses are atomic.
        unsafe {
            written!(reg64, concat!("ld.relaxed.", $scope, ".global.u64 {out}, [{x}];"), x = in(reg64) $word.pointer(),
                     options(nostack))
        }
    };
}
