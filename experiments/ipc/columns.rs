//! Columns of `ginlab ipc`.

use ginlab::report::Column;

pub const OPERATION: Column =
    Column::chosen("operation", "", "Operation: `write` (a pattern), `copy` (from local memory), `read`");
pub const PAIR: Column =
    Column::chosen("pair", "", "Source and target ranks: `0>1`; concurrent pairs: `0<>1`, `all`").shown("pair", 5);
pub const DIRECTION: Column = Column::chosen("direction", "", "Concurrent directions: `one`, `both`, `all`");
pub const STORE: Column = Column::chosen("store", "", "Method of storing: `plain`, `parts`, `bulk`");
pub const WIDTH: Column = Column::chosen("width_bytes", "B", "Bytes per store or load of a thread").shown("width", 5);
pub const LAUNCH: Column = Column::chosen(
    "launch",
    "",
    "Submission of launches: `stream` (one by one), `graph` (recorded and launched together)",
)
.shown("launch", 6);
pub const RECEIVED: Column = Column::measured(
    "received_us_p50",
    "us",
    "Median time between consecutive flags, each stored after its data, as observed by the receiving device",
);
pub const ONE_WAY: Column = Column::measured(
    "one_way_ratio",
    "",
    "Time of the same direction without the other, divided by the time of this row",
);
pub const KNEE: Column =
    Column::measured("knee", "", "Whether this is the smallest grid within 2 % of the best of its sweep");
