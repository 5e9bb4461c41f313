//! CUDA MPS for ranks whose kernels share a GPU: the option, and the fields of rows and headers.

use crate::columns::SHARING;
use ginlab::cuda;
use ginlab::mps::{self, LocalRun, MpsChoice};
use ginlab::report::{Header, Key, Row};
use ginlab::sharing::Sharing;

/// Options of ranks that may share a GPU.
#[derive(clap::Args, Clone, Debug)]
pub struct MpsArgs {
    /// CUDA MPS for ranks that share a GPU: auto (start a private server if none is running), off
    #[arg(long, value_enum, default_value_t = MpsChoice::Auto, value_name = "WHICH", hide_possible_values = true)]
    mps: MpsChoice,
    /// Number of GPUs to assume on this machine, for tests
    #[arg(long, hide = true, value_name = "N")]
    pretend_gpus: Option<usize>,
}

impl MpsArgs {
    /// Returns the settings for ranks whose kernels run on `device`.
    pub fn on(&self, device: cuda::DeviceChoice) -> Kernels {
        Kernels { choice: self.mps, device, gpus: self.pretend_gpus, by_half: false }
    }
}

/// MPS settings of ranks that ginlab starts.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    choice: MpsChoice,
    device: cuda::DeviceChoice,
    gpus: Option<usize>,
    by_half: bool,
}

impl Kernels {
    /// Specifies that only the first half of the ranks run kernels.
    pub fn by_half(self) -> Kernels {
        Kernels { by_half: true, ..self }
    }

    /// See [`mps::before_ranks`].
    pub fn before(self, ranks: usize) -> mps::MpsStep {
        let Kernels { choice, device, gpus, by_half } = self;
        let ranks = if by_half { ranks / 2 } else { ranks };
        mps::before_ranks(&LocalRun { choice, device, ranks, gpus })
    }
}

/// Records in the header how PEs share GPUs.
pub fn describe(header: &mut Header, sharing: &Sharing) {
    header.set(Key::Sharing, sharing.header());
}

/// Records in the row how PEs share GPUs.
pub fn mark(row: &mut Row, sharing: &Sharing) {
    row.set(&SHARING, sharing.name());
}
