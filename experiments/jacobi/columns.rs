//! Columns of `ginlab jacobi` in addition to the common ones.

use super::args::{HaloExchange, JacobiConfig, Norm};
use crate::columns::{RULE, SHARING};
use ginlab::report::{Column, Row};

pub const NX: Column = Column::chosen("nx", "", "Columns of the field").shown("nx", 5);
pub const NY: Column = Column::chosen("ny", "", "Rows of the field, total of all ranks");
pub const NORM: Column =
    Column::chosen("norm", "", "Summation of the squared changes: `thread-atomic`, `block`, `never`").shown("norm", 13);
pub const NORM_WHEN: Column =
    Column::chosen("norm_when", "", "Time at which the CPU receives the norm: `now`, `delayed`, `every=K`")
        .shown("when", 7);
pub const SYNC: Column = Column::chosen(
    "sync",
    "",
    "Synchronization between two iterations: `barrier` of all, or a wait for both `neighbours`",
)
.shown("sync", 10);
pub const T1: Column =
    Column::measured("t1_us", "us", "Time of an iteration of the launched kernel on one device, in the same run");
pub const SPEEDUP: Column =
    Column::measured("speedup", "", "Time on one device divided by the time on all").shown("x", 5);
pub const EFFICIENCY: Column = Column::measured("efficiency_pct", "%", "Speed-up divided by the number of ranks");
pub const EXPOSED: Column = Column::measured(
    "exposed_us",
    "us",
    "Exposed communication: time of an iteration minus t1 divided by the ranks. \
                                          Empty for resident fields and for negative values",
)
.shown("exposed", 8);
pub const FIELD: Column = Column::measured(
    "field_gbytes_s",
    "GB/s",
    "Bytes of a rank's field, read once and written once, divided by the time",
);
pub const KERNEL: Column = Column::measured(
    "kernel_us",
    "us",
    "From the trace: time from the start of the first block to the end of the last one, mean",
);
pub const WAIT: Column =
    Column::measured("wait_us", "us", "From the trace: longest wait of a block for rows of a neighbour, mean");
pub const SEND: Column =
    Column::measured("send_us", "us", "From the trace: longest time of a block to send its rows, mean");
pub const NORM_TIME: Column =
    Column::measured("norm_us", "us", "Time of an iteration minus that of the same without a norm");
pub const NORM_VALUE: Column = Column::measured("norm_value", "", "Norm of the last iteration's changes");
pub const NOTE: Column = Column::measured("note", "", "Note about this row");

/// All columns of the experiment.
pub const ALL: &[Column] = &[
    NX, NY, NORM, NORM_WHEN, SYNC, RULE, SHARING, T1, SPEEDUP, EFFICIENCY, EXPOSED, FIELD, KERNEL, WAIT, SEND,
    NORM_TIME, NORM_VALUE, NOTE,
];

/// Sets the columns of the parameter combination's parameters.
pub fn chosen(row: &mut Row, tuple: &JacobiConfig, norm: &str, sync: &str) {
    row.set(&NX, u64::from(tuple.nx)).set(&NY, u64::from(tuple.ny)).set(&NORM, norm).set(&SYNC, sync);
    if tuple.norm != Norm::Never {
        row.set(&NORM_WHEN, tuple.when.to_string());
    }
    if tuple.norm == Norm::ThreadAtomic {
        row.set(&NOTE, "reproduces an artefact: every point is added to one float by a separate atomic operation");
    }
}

/// Sets the columns of NVIDIA's scaling metric. `time` and `alone` are microseconds per iteration on all devices and on
/// one.
pub fn scaling(row: &mut Row, tuple: &JacobiConfig, time: f64, alone: f64) {
    let ranks = f64::from(row.ranks);
    // The time on one device is that of the launched kernel, which is not comparable with a field in registers and
    // shared memory.
    let exposed =
        Some(time - alone / ranks).filter(|exposed| tuple.exchange != HaloExchange::Resident && *exposed >= 0.0);
    let bytes = 2.0 * 4.0 * f64::from(tuple.nx) * f64::from(tuple.ny) / ranks;
    row.set(&T1, alone)
        .set(&SPEEDUP, alone / time)
        .set(&EFFICIENCY, 100.0 * alone / time / ranks)
        .set(&EXPOSED, exposed)
        .set(&FIELD, bytes / time / 1000.0);
}
