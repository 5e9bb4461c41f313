//! Why a world could not do what it was asked.

use ginlab_bootstrap::{BootstrapError, Ending};
use ginlab_cuda::DeviceError;
use ginlab_direct::ChannelError;
use ginlab_fabric::FabricError;
use ginlab_proxy::{ChooseError, ProxyError};
use kernels::gin::Call;
use kernels::ring::Status;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum GinError {
    /// What was asked for cannot be: one line with what is allowed.
    #[error("{0}")]
    Usage(String),
    /// A kernel's call failed: the first of its launch.
    #[error("{text}")]
    Call {
        /// Which call, where, to which PE, and why.
        text: String,
        /// The reason as the kernel got it.
        stop: Status,
        /// Whether something was waited for in vain: by the kernel, or by the proxy that it waited for.
        timed_out: bool,
    },
    /// Somebody has pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The ranks'.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// The device's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// A proxy's.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// The fabric's.
    #[error("{0}")]
    Fabric(#[from] FabricError),
}

impl From<ChooseError> for GinError {
    fn from(error: ChooseError) -> GinError {
        match error {
            ChooseError::Ranks(error) => GinError::Ranks(error),
            ChooseError::Usage(text) => GinError::Usage(text),
        }
    }
}

impl From<ChannelError> for GinError {
    fn from(error: ChannelError) -> GinError {
        match error {
            ChannelError::Refused(text) => GinError::Usage(format!("path direct: {text}")),
            ChannelError::Ranks(error) => GinError::Ranks(error),
            ChannelError::Device(error) => GinError::Device(error),
            ChannelError::Fabric(error) => GinError::Fabric(error),
        }
    }
}

impl GinError {
    /// Whether something was waited for in vain.
    pub fn is_timeout(&self) -> bool {
        match self {
            GinError::Call { timed_out, .. } => *timed_out,
            GinError::Ranks(error) => error.ending() == Ending::TimedOut,
            GinError::Proxy(error) => error.is_timeout(),
            _ => false,
        }
    }
}

/// The error of a report's words.
pub(super) fn call(
    kernel: &str,
    words: &[u64; 8],
    pe: Option<(u32, String)>,
    proxy: Option<ProxyError>,
    (rings, card): (Vec<String>, Vec<String>),
) -> GinError {
    let [stop, number, _, detail, seen, wanted, block, thread] = *words;
    let (stop, call) = (Status(stop), Call::from_repr(number));
    let what = match call {
        Some(Call::Wait | Call::Signal | Call::WaitRound | Call::Reclaim) => format!(" of signal {detail}"),
        Some(Call::Words) => format!(" of number {wanted}"),
        Some(Call::Barrier | Call::Quiet | Call::Fence) | None => String::new(),
        Some(_) => format!(" of {detail} B"),
    };
    let to = pe.map(|(pe, path)| format!(" with PE {pe} ({path})")).unwrap_or_default();
    let waited = if wanted > 0 && call != Some(Call::Words) {
        format!(", which had reached {seen} of {wanted}")
    } else {
        String::new()
    };
    let name = call.map_or("an unknown call", Call::into);
    let mut text = format!("{kernel}: block {block}, thread {thread}: {name}{what}{to}{waited}: {}", stop.text());
    let timed_out = stop == Status::DEADLINE || proxy.as_ref().is_some_and(ProxyError::is_timeout);
    if let Some(error) = proxy {
        text.push_str(&format!("; the proxy: {error}"));
    }
    if stop == Status::DEADLINE && !rings.is_empty() {
        text.push_str(&format!("; {}", rings.join("; ")));
    }
    if !card.is_empty() {
        text.push_str(&format!("; the card: {}", card.join("; ")));
    }
    GinError::Call { text, stop, timed_out }
}
