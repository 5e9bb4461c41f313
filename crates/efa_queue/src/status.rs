//! How a request ends, by the card's number.

/// How a request ended. The names are short, so that they stand in a message; [`Status::text`] says what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Well.
    Ok = 0,
    /// The queue pair was taken down.
    Flushed = 1,
    /// The queue pair itself is in error.
    QueuePair = 2,
    /// The card does not do this operation.
    UnsupportedOperation = 3,
    /// The address handle is none of this protection domain.
    AddressHandle = 4,
    /// The local key does not cover the bytes.
    LocalKey = 5,
    /// More bytes than an operation takes.
    LocalLength = 6,
    /// The remote key does not cover the bytes, for this use.
    RemoteAddress = 7,
    /// The peer ended it.
    RemoteAborted = 8,
    /// The peer has no such queue pair, or it is in error.
    RemoteQueuePair = 9,
    /// No receive is posted there.
    ReceiverNotReady = 10,
    /// The receive there is too short.
    RemoteLength = 11,
    /// The peer's card answered something unexpected.
    RemoteStatus = 12,
    /// The peer answered before and does not any more.
    Unresponsive = 13,
    /// The peer has no address handle for this card; reads and writes need one there.
    UnknownPeer = 14,
    /// The peer has never answered.
    Unreachable = 15,
    /// The peer's card lacks what this one asks for.
    FeatureMismatch = 18,
}

impl Status {
    /// All of them, by number.
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

    /// The status of a number; `None` where the layout names none.
    pub const fn of(number: u8) -> Option<Status> {
        match number {
            18 => Some(Status::FeatureMismatch),
            0..=15 => Some(Status::ALL[number as usize]),
            _ => None,
        }
    }

    /// A short name, as a row or an option has it.
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

    /// What it means, in a few words.
    pub const fn text(self) -> &'static str {
        match self {
            Status::Ok => "the request has ended well",
            Status::Flushed => "the queue pair was taken down",
            Status::QueuePair => "the queue pair is in error",
            Status::UnsupportedOperation => "the card does not do this operation",
            Status::AddressHandle => "the address handle is none of this protection domain",
            Status::LocalKey => "the local key does not cover the bytes",
            Status::LocalLength => "more bytes than an operation takes",
            Status::RemoteAddress => "the remote key does not cover the bytes",
            Status::RemoteAborted => "the peer ended it",
            Status::RemoteQueuePair => "the peer has no such queue pair, or it is in error",
            Status::ReceiverNotReady => "no receive is posted at the peer",
            Status::RemoteLength => "the receive at the peer is too short",
            Status::RemoteStatus => "the peer's card answered something unexpected",
            Status::Unresponsive => "the peer does not answer any more",
            Status::UnknownPeer => "the peer has no address handle for this card",
            Status::Unreachable => "the peer has never answered",
            Status::FeatureMismatch => "the peer's card lacks a feature",
        }
    }
}
