//! The columns of `ginlab jacobi` beside the common ones.

use super::args::{Exchange, Norm, Tuple};
use crate::columns::{RULE, SHARING};
use ginlab::report::{Column, Row};

pub const NX: Column = Column::chosen("nx", "", "Columns of the field").shown("nx", 5);
pub const NY: Column = Column::chosen("ny", "", "Rows of the field, of all ranks together");
pub const NORM: Column =
    Column::chosen("norm", "", "Who sums the squares of the changes: `thread-atomic`, `block`, `never`")
        .shown("norm", 13);
pub const NORM_WHEN: Column =
    Column::chosen("norm_when", "", "When the CPU sees the norm: `now`, `delayed`, `every=K`").shown("when", 7);
pub const SYNC: Column =
    Column::chosen("sync", "", "What stands between two iterations: `barrier` of all, or a wait for both `neighbours`")
        .shown("sync", 10);
pub const T1: Column =
    Column::measured("t1_us", "us", "Time of an iteration of the launched kernel on one device, in the same run");
pub const SPEEDUP: Column = Column::measured("speedup", "", "Time on one device over the time on all").shown("x", 5);
pub const EFFICIENCY: Column = Column::measured("efficiency_pct", "%", "Speed-up over the number of ranks");
pub const EXPOSED: Column =
    Column::measured("exposed_us", "us", "Time of an iteration less t1 over the ranks: what is not computing. Empty where it means nothing: resident fields, and less than 0")
        .shown("exposed", 8);
pub const FIELD: Column =
    Column::measured("field_gbytes_s", "GB/s", "Bytes of a rank's field, read once and written once, over the time");
pub const KERNEL: Column =
    Column::measured("kernel_us", "us", "By trace: from the first block's begin to the last one's end, mean");
pub const WAIT: Column =
    Column::measured("wait_us", "us", "By trace: the longest wait of a block for rows of a neighbour, mean");
pub const SEND: Column =
    Column::measured("send_us", "us", "By trace: the longest time of a block to send its rows, mean");
pub const NORM_TIME: Column =
    Column::measured("norm_us", "us", "Time of an iteration less that of the same without a norm");
pub const NORM_VALUE: Column = Column::measured("norm_value", "", "Norm of the last iteration's changes");
pub const NOTE: Column = Column::measured("note", "", "What a reader must know of this row");

/// All of them.
pub const ALL: &[Column] = &[
    NX, NY, NORM, NORM_WHEN, SYNC, RULE, SHARING, T1, SPEEDUP, EFFICIENCY, EXPOSED, FIELD, KERNEL, WAIT, SEND,
    NORM_TIME, NORM_VALUE, NOTE,
];

/// What was asked for.
pub fn chosen(row: &mut Row, tuple: &Tuple, norm: &str, sync: &str) {
    row.set(&NX, u64::from(tuple.nx)).set(&NY, u64::from(tuple.ny)).set(&NORM, norm).set(&SYNC, sync);
    if tuple.norm != Norm::Never {
        row.set(&NORM_WHEN, tuple.when.to_string());
    }
    if tuple.norm == Norm::ThreadAtomic {
        row.set(&NOTE, "reproduces an artefact: every point is added to one float by an atomic operation of its own");
    }
}

/// NVIDIA's metric: `time` and `alone` are microseconds of an iteration, on all devices and on one.
pub fn scaling(row: &mut Row, tuple: &Tuple, time: f64, alone: f64) {
    let ranks = f64::from(row.ranks);
    // One device's iteration is the launched one: a field that stays on the chip has nothing to be compared with.
    let exposed = Some(time - alone / ranks).filter(|exposed| tuple.exchange != Exchange::Resident && *exposed >= 0.0);
    let bytes = 2.0 * 4.0 * f64::from(tuple.nx) * f64::from(tuple.ny) / ranks;
    row.set(&T1, alone)
        .set(&SPEEDUP, alone / time)
        .set(&EFFICIENCY, 100.0 * alone / time / ranks)
        .set(&EXPOSED, exposed)
        .set(&FIELD, bytes / time / 1000.0);
}
