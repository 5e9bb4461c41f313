//! Errors of a world.

use crate::direct::ChannelError;
use ginlab_bootstrap::{BootstrapError, FailureKind};
use ginlab_cuda::DeviceError;
use ginlab_fabric::FabricError;
use ginlab_proxy::engine::EngineError;
use ginlab_proxy::{ChooseError, ProxyError};
use kernels::gin::Call;
use kernels::ring::Status;

/// Error of a [`World`](crate::World).
#[derive(Debug, thiserror::Error)]
pub enum GinError {
    /// An option is invalid or not supported here. The text is one line that includes the permitted values.
    #[error("{0}")]
    Usage(String),
    /// A call of a kernel failed; the first one of its launch.
    #[error("{text}")]
    Call {
        /// The call, its location, the target PE, and the reason.
        text: String,
        /// The status that the kernel received.
        stop: Status,
        /// Whether a wait timed out, in the kernel or in the proxy for which the kernel waited.
        timed_out: bool,
    },
    /// A launch was refused because the world had a final failure before: a peer exited, a proxy stopped, or a kernel
    /// made no progress.
    #[error("this world has failed and launches no more kernels; close it and open another one; cause: {text}")]
    Failed {
        /// Text of the first failure.
        text: String,
        /// Whether the first failure was a timeout.
        timed_out: bool,
    },
    /// The run was interrupted, for example with Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Threads that copy bytes could not be started.
    #[error("cannot start copy threads: {0}")]
    Threads(String),
    /// Communication between the ranks failed.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// A device operation failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// A proxy failed.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// A fabric operation failed.
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
    /// Returns whether a wait timed out.
    pub fn is_timeout(&self) -> bool {
        match self {
            GinError::Call { timed_out, .. } | GinError::Failed { timed_out, .. } => *timed_out,
            GinError::Ranks(error) => error.ending() == FailureKind::TimedOut,
            GinError::Proxy(error) => error.is_timeout(),
            _ => false,
        }
    }
}

/// Creates the error for the words of a kernel's report.
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
        Some(Call::Barrier | Call::Quiet | Call::Fence | Call::GridSync) | None => String::new(),
        Some(_) => format!(" of {detail} B"),
    };
    let to = pe.map(|(pe, path)| format!(" with PE {pe} ({path})")).unwrap_or_default();
    let waited = if wanted > 0 && call != Some(Call::Words) {
        let of = if call == Some(Call::GridSync) { " blocks" } else { "" };
        format!(", which had reached {seen} of {wanted}{of}")
    } else {
        String::new()
    };
    let name = call.map_or("an unknown call", Call::into);
    if let Some(ProxyError::Engine(EngineError::Fabric(fault))) = &proxy
        && fault.is_misuse()
    {
        // The proxy's error is the cause and comes first; the kernel's call only detected it.
        let text = format!("{fault}; {kernel}: block {block}, thread {thread}, in {name}");
        return GinError::Call { text, stop, timed_out: false };
    }
    let mut text = format!("{kernel}: block {block}, thread {thread}: {name}{what}{to}{waited}: {}", stop.text());
    let timed_out = stop == Status::DEADLINE || proxy.as_ref().is_some_and(ProxyError::is_timeout);
    if let Some(error) = proxy {
        text.push_str(&format!("; the proxy: {error}"));
    }
    if stop == Status::DEADLINE && !rings.is_empty() {
        text.push_str(&format!("; {}", rings.join("; ")));
    }
    if !card.is_empty() {
        text.push_str(&format!("; NIC: {}", card.join("; ")));
    }
    GinError::Call { text, stop, timed_out }
}
