//! Completion status codes of the hardware.

/// Completion status. The names are short, for use in messages; [`Status::text`] explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
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

impl Status {
    /// All statuses in ascending order.
    pub const ALL: [Status; 17] = [
        Status::Ok,
        Status::Flushed,
        Status::QueuePair,
        Status::UnsupportedOperation,
        Status::AddressHandle,
        Status::LocalKey,
        Status::LocalLength,
        Status::RemoteAddress,
        Status::RemoteAborted,
        Status::RemoteQueuePair,
        Status::ReceiverNotReady,
        Status::RemoteLength,
        Status::RemoteStatus,
        Status::Unresponsive,
        Status::UnknownPeer,
        Status::Unreachable,
        Status::FeatureMismatch,
    ];

    /// Returns the status of a code, or `None` if it is not defined.
    pub const fn of(number: u8) -> Option<Status> {
        match number {
            18 => Some(Status::FeatureMismatch),
            0..=15 => Some(Status::ALL[number as usize]),
            _ => None,
        }
    }

    /// Returns a short name, for result rows and options.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Flushed => "flushed",
            Status::QueuePair => "queue-pair-error",
            Status::UnsupportedOperation => "unsupported-operation",
            Status::AddressHandle => "bad-address-handle",
            Status::LocalKey => "bad-local-key",
            Status::LocalLength => "bad-length",
            Status::RemoteAddress => "bad-remote-address",
            Status::RemoteAborted => "remote-aborted",
            Status::RemoteQueuePair => "bad-remote-queue-pair",
            Status::ReceiverNotReady => "receiver-not-ready",
            Status::RemoteLength => "remote-bad-length",
            Status::RemoteStatus => "remote-bad-status",
            Status::Unresponsive => "unresponsive",
            Status::UnknownPeer => "unknown-peer",
            Status::Unreachable => "unreachable",
            Status::FeatureMismatch => "feature-mismatch",
        }
    }

    /// Returns a short explanation.
    pub const fn text(self) -> &'static str {
        match self {
            Status::Ok => "the request succeeded",
            Status::Flushed => "the queue pair was destroyed",
            Status::QueuePair => "the queue pair is in error",
            Status::UnsupportedOperation => "the NIC does not support this operation",
            Status::AddressHandle => "the address handle does not belong to this protection domain",
            Status::LocalKey => "the local key does not cover the bytes",
            Status::LocalLength => "more bytes than an operation supports",
            Status::RemoteAddress => "the remote key does not cover the bytes",
            Status::RemoteAborted => "the peer aborted it",
            Status::RemoteQueuePair => "the peer has no such queue pair, or it is in error",
            Status::ReceiverNotReady => "no receive is posted at the peer",
            Status::RemoteLength => "the receive at the peer is too short",
            Status::RemoteStatus => "the peer's NIC sent an unexpected answer",
            Status::Unresponsive => "the peer no longer answers",
            Status::UnknownPeer => "the peer has no address handle for this NIC",
            Status::Unreachable => "the peer has never answered",
            Status::FeatureMismatch => "the peer's NIC lacks a feature",
        }
    }
}
