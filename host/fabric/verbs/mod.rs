//! EFA without libfabric: libibverbs and libefa, loaded at run time. Their functions are used for setup. A rail
//! ([`VerbsRail`]) on the CPU, or a kernel ([`PairView`]), writes requests directly to the NIC's queues and reads
//! completions from them ([`efa_queue`]).
//!
//! This module requires rdma-core 59 or newer, which reports the addresses of the queues. A software NIC is a thread of
//! this process.

mod barriers;
mod cards;
mod device;
mod errors;
mod messages;
mod pair;
mod queues;
mod rail;
mod region;
mod view;

pub(crate) use cards::label;
pub use cards::{PREFIX, cards, is_asked};
pub use device::Verbs;
pub use pair::QueuePair;
pub use queues::CompletionReader;
pub use rail::VerbsRail;
pub use region::VerbsRegion;
pub use view::{CompletionRing, CountedEvent, Mapping, PairOptions, PairView, WorkRing};
