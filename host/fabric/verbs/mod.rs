//! EFA's cards without libfabric: libibverbs and libefa, loaded at run time. Set-up goes by their functions; requests are written into the card's
//! own queues and completions read there ([`efa_queue`]), by a rail ([`VerbsRail`]) on the CPU or by a kernel ([`PairView`]).
//!
//! Needs rdma-core 59 or newer, which says where the queues are. Over cards in software the card is a thread of this process.

mod cards;
mod device;
mod errors;
mod pair;
mod queues;
mod rail;
mod region;

pub(crate) use cards::label;
pub use cards::{PREFIX, cards, is_asked};
pub use device::Verbs;
pub use pair::{Completions, Counted, Mapping, Pair, PairOptions, PairView, Ring};
pub use rail::VerbsRail;
pub use region::Region;
