//! Ranks whose kernels share a GPU: the option, and what rows and headers say.

use crate::columns::SHARING;
use ginlab::cuda;
use ginlab::mps::{self, Asked, Choice};
use ginlab::report::{Header, Key, Row};
use ginlab::sharing::Sharing;

/// Options of ranks that may share a GPU.
#[derive(clap::Args, Clone, Debug)]
pub struct MpsArgs {
    /// CUDA's MPS for ranks that share a GPU: auto (start a server of their own where none is there), off (start none)
    #[arg(long, value_enum, default_value_t = Choice::Auto, value_name = "WHICH", hide_possible_values = true)]
    mps: Choice,
    /// GPUs that are taken to be here, for tests
    #[arg(long, hide = true, value_name = "N")]
    pretend_gpus: Option<usize>,
}

impl MpsArgs {
    /// For ranks whose kernels run there.
    pub fn on(&self, device: cuda::Choice) -> Kernels {
        Kernels { choice: self.mps, device, gpus: self.pretend_gpus, by_half: false }
    }
}

/// Kernels of ranks that ginlab starts.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    choice: Choice,
    device: cuda::Choice,
    gpus: Option<usize>,
    by_half: bool,
}

impl Kernels {
    /// Where the first half of the ranks runs some, and the other half none.
    pub fn by_half(self) -> Kernels {
        Kernels { by_half: true, ..self }
    }

    /// See [`mps::before_ranks`].
    pub fn before(self, ranks: usize) -> mps::Step {
        let Kernels { choice, device, gpus, by_half } = self;
        let ranks = if by_half { ranks / 2 } else { ranks };
        mps::before_ranks(&Asked { choice, device, ranks, gpus })
    }
}

/// Says in a header how PEs shared GPUs.
pub fn describe(header: &mut Header, sharing: &Sharing) {
    header.set(Key::Sharing, sharing.header());
}

/// Says it in a row.
pub fn mark(row: &mut Row, sharing: &Sharing) {
    row.set(&SHARING, sharing.name());
}
