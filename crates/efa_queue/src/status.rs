//! Completion status codes of the hardware.

/// Completion status. The names are short, for use in messages; [`CompletionStatus::text`] explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompletionStatus {
    /// Success.
    Ok = 0,
    /// The queue pair was destroyed or put in error.
    Flushed = 1,
    /// The queue pair is in error.
    QueuePair = 2,
    /// The device does not support the operation.
    UnsupportedOperation = 3,
    /// The address handle does not belong to this protection domain.
    AddressHandle = 4,
    /// The local key does not cover the bytes.
    LocalKey = 5,
    /// More bytes than the operation permits.
    LocalLength = 6,
    /// The remote key does not cover the bytes for this use.
    RemoteAddress = 7,
    /// The peer aborted the operation.
    RemoteAborted = 8,
    /// The peer has no such queue pair, or it is in error.
    RemoteQueuePair = 9,
    /// The peer has no receive posted.
    ReceiverNotReady = 10,
    /// The peer's receive is too short.
    RemoteLength = 11,
    /// The peer's device returned an unexpected status.
    RemoteStatus = 12,
    /// A peer that used to respond no longer does.
    Unresponsive = 13,
    /// The peer has no address handle of this device, which reads and writes require.
    UnknownPeer = 14,
    /// The peer has never responded.
    Unreachable = 15,
    /// The peer's device does not support the operation.
    FeatureMismatch = 18,
}

impl CompletionStatus {
    /// All statuses in ascending order.
    pub const ALL: [CompletionStatus; 17] = [
        CompletionStatus::Ok,
        CompletionStatus::Flushed,
        CompletionStatus::QueuePair,
        CompletionStatus::UnsupportedOperation,
        CompletionStatus::AddressHandle,
        CompletionStatus::LocalKey,
        CompletionStatus::LocalLength,
        CompletionStatus::RemoteAddress,
        CompletionStatus::RemoteAborted,
        CompletionStatus::RemoteQueuePair,
        CompletionStatus::ReceiverNotReady,
        CompletionStatus::RemoteLength,
        CompletionStatus::RemoteStatus,
        CompletionStatus::Unresponsive,
        CompletionStatus::UnknownPeer,
        CompletionStatus::Unreachable,
        CompletionStatus::FeatureMismatch,
    ];

    /// Returns the status of a code, or `None` if it is not defined.
    pub const fn of(number: u8) -> Option<CompletionStatus> {
        match number {
            18 => Some(CompletionStatus::FeatureMismatch),
            0..=15 => Some(CompletionStatus::ALL[number as usize]),
            _ => None,
        }
    }

    /// Returns a short name, for result rows and options.
    pub const fn name(self) -> &'static str {
        match self {
            CompletionStatus::Ok => "ok",
            CompletionStatus::Flushed => "flushed",
            CompletionStatus::QueuePair => "queue-pair-error",
            CompletionStatus::UnsupportedOperation => "unsupported-operation",
            CompletionStatus::AddressHandle => "bad-address-handle",
            CompletionStatus::LocalKey => "bad-local-key",
            CompletionStatus::LocalLength => "bad-length",
            CompletionStatus::RemoteAddress => "bad-remote-address",
            CompletionStatus::RemoteAborted => "remote-aborted",
            CompletionStatus::RemoteQueuePair => "bad-remote-queue-pair",
            CompletionStatus::ReceiverNotReady => "receiver-not-ready",
            CompletionStatus::RemoteLength => "remote-bad-length",
            CompletionStatus::RemoteStatus => "remote-bad-status",
            CompletionStatus::Unresponsive => "unresponsive",
            CompletionStatus::UnknownPeer => "unknown-peer",
            CompletionStatus::Unreachable => "unreachable",
            CompletionStatus::FeatureMismatch => "feature-mismatch",
        }
    }

    /// Returns a short explanation.
    pub const fn text(self) -> &'static str {
        match self {
            CompletionStatus::Ok => "the request succeeded",
            CompletionStatus::Flushed => "the queue pair was destroyed",
            CompletionStatus::QueuePair => "the queue pair is in error",
            CompletionStatus::UnsupportedOperation => "the NIC does not support this operation",
            CompletionStatus::AddressHandle => "the address handle does not belong to this protection domain",
            CompletionStatus::LocalKey => "the local key does not cover the bytes",
            CompletionStatus::LocalLength => "more bytes than an operation supports",
            CompletionStatus::RemoteAddress => "the remote key does not cover the bytes",
            CompletionStatus::RemoteAborted => "the peer aborted it",
            CompletionStatus::RemoteQueuePair => "the peer has no such queue pair, or it is in error",
            CompletionStatus::ReceiverNotReady => "no receive is posted at the peer",
            CompletionStatus::RemoteLength => "the receive at the peer is too short",
            CompletionStatus::RemoteStatus => "the peer's NIC sent an unexpected answer",
            CompletionStatus::Unresponsive => "the peer no longer answers",
            CompletionStatus::UnknownPeer => "the peer has no address handle for this NIC",
            CompletionStatus::Unreachable => "the peer has never answered",
            CompletionStatus::FeatureMismatch => "the peer's NIC lacks a feature",
        }
    }
}
