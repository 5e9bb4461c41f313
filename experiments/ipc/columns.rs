//! The columns of `ginlab ipc`.

use ginlab::report::Column;

pub const OPERATION: Column =
    Column::chosen("operation", "", "What moves the bytes: `write` (a pattern), `copy` (from local memory), `read`");
pub const PAIR: Column =
    Column::chosen("pair", "", "From which rank to which: `0>1`; several at once: `0<>1`, `all`").shown("pair", 5);
pub const DIRECTION: Column = Column::chosen("direction", "", "What goes on at once: `one`, `both`, `all`");
pub const STORE: Column = Column::chosen("store", "", "How a kernel stores: `plain`, `parts`, `bulk`");
pub const WIDTH: Column =
    Column::chosen("width_bytes", "B", "Bytes of one store or load of a thread").shown("width", 5);
pub const LAUNCH: Column = Column::chosen(
    "launch",
    "",
    "How work gets to the device: `stream` (one launch for each), `graph` (recorded, and launched as a whole)",
)
.shown("launch", 6);
pub const RECEIVED: Column = Column::measured(
    "received_us_p50",
    "us",
    "Median time from one flag to the next, as the receiving device sees them, each behind its data",
);
pub const ONE_WAY: Column = Column::measured(
    "one_way_ratio",
    "",
    "The same way alone over this row's: its time in one direction by its time here",
);
pub const KNEE: Column =
    Column::measured("knee", "", "Whether this is the smallest grid within 2 % of the best of its sweep");
