//! One side of an echo: a socket, and a rail with space for two messages in each direction.

use super::args::EchoPlan;
use crate::error::Failure;
use crate::rails::{RailRequest, Rails, UNEXPECTED_MESSAGE};
use crate::runner::drive;
use crate::visitors::HINDSIGHT;
use ginlab::bootstrap::session::{Ended, Session, bounded};
use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::Access;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::flow::{Offer, Peer, Region};
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Information that the two sides exchange over the socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct SideInfo {
    pub provider: String,
    pub offer: Offer,
}

/// A rail of this side.
pub struct OpenSide {
    pub rails: Rails,
    region: Region<AnyRail>,
    /// Bytes per slot of the region.
    slot: u64,
    driver: JoinHandle<()>,
}

impl Drop for OpenSide {
    fn drop(&mut self) {
        // The driver task holds the flow. When the task has ended, dropping the flow drains transfers in flight.
        self.driver.abort();
    }
}

impl OpenSide {
    /// Opens a rail that reaches the peer, and registers memory for the plan's messages.
    pub fn new(wanted: &RailRequest, plan: &EchoPlan, same_host: bool) -> Result<OpenSide, Failure> {
        let rails = wanted.open(if same_host { Reach::SameHost } else { Reach::Network })?;
        // Poll the sockets as often as the rail.
        rails.flow.poll_at_most(1);
        let (device, _) = Device::open(DeviceChoice::Emulated, 0)?;
        let slot = plan.largest().next_multiple_of(4096);
        let region = rails
            .flow
            .register(device.allocate(MemoryLocation::Host, slot as usize * 4)?, Access::SOURCE | Access::SINK)?;
        let driver = drive(&rails.flow);
        Ok(OpenSide { rails, region, slot, driver })
    }

    pub fn card(&self) -> Result<SideInfo, Failure> {
        Ok(SideInfo { provider: self.rails.provider.clone(), offer: self.rails.flow.offer(&[&self.region])? })
    }

    /// Adds the other side as a peer, using the information that it has sent.
    pub fn peer(&self, theirs: &SideInfo) -> Result<Peer, Failure> {
        Ok(self.rails.flow.add_peer(&theirs.offer)?)
    }

    /// Writes `message` to the slot from which [`round_trip`](OpenSide::round_trip) sends, and `poison` to the slot
    /// that receives the echo.
    pub fn set(&self, message: &[u8], poison: &[u8]) -> Result<(), Failure> {
        self.region.buffer().write(0, message)?;
        Ok(self.region.buffer().write(self.slot as usize, poison)?)
    }

    /// Reads the received echo.
    pub fn arrived(&self, into: &mut [u8]) -> Result<(), Failure> {
        Ok(self.region.buffer().read(self.slot as usize, into)?)
    }

    /// Sends the message and waits for its echo.
    pub async fn round_trip(&self, peer: Peer, bytes: u64) -> Result<(), Failure> {
        let OpenSide { rails: Rails { flow, .. }, region, slot, .. } = self;
        let echo = flow.recv(0, region, *slot, bytes);
        let sent = flow.send(0, peer, region, 0, bytes);
        let length = echo.await?;
        sent.await?;
        if length != bytes {
            return Err(Failure::Run(format!(
                "unexpected echo of {length} B for a message of {bytes} B over the fabric: {UNEXPECTED_MESSAGE}"
            )));
        }
        Ok(())
    }

    /// Echoes every message of the plan. Posts the receive for the next message before it sends the echo of the
    /// previous one.
    pub async fn echo(&self, peer: Peer, plan: &EchoPlan) -> Result<(), Failure> {
        let OpenSide { rails: Rails { flow, .. }, region, slot, .. } = self;
        let total = plan.total();
        let room = |number: u64| flow.recv(0, region, number % 2 * slot, *slot);
        let mut next = Some(room(0));
        for number in 0..total {
            let Some(message) = next.take() else { break };
            let bytes = message.await?;
            // Every message counts towards the plan. A message from another peer would replace the client's last one,
            // so the sizes are checked.
            if let Some(&expected) = plan.sizes.get((number / plan.messages) as usize).filter(|size| **size != bytes) {
                return Err(Failure::Run(format!(
                    "unexpected message of {bytes} B over the fabric (the client sends {expected} B): {UNEXPECTED_MESSAGE}"
                )));
            }
            next = (number + 1 < total).then(|| room(number + 1));
            flow.send(0, peer, region, number % 2 * slot, bytes).await?;
        }
        Ok(())
    }
}

/// The socket of this side.
pub struct Socket {
    stream: TcpStream,
    peer: String,
    limit: Duration,
}

impl Socket {
    pub fn new(visit: Session, limit: Duration) -> Result<Socket, Failure> {
        let peer = visit.to_string();
        Ok(Socket { stream: visit.into_stream()?, peer, limit })
    }

    /// Sends the message and waits for its echo.
    pub async fn round_trip(&mut self, message: &[u8], echo: &mut [u8]) -> Result<(), Failure> {
        let (mut reader, mut writer) = self.stream.split();
        // Send and receive concurrently. Otherwise neither side could receive a long message while it waits for the
        // other to receive one.
        let both = async { tokio::try_join!(writer.write_all(message), reader.read_exact(echo)) };
        let what = format!("a message of {} B was in flight over the socket", message.len());
        judged(bounded(self.limit, both).await, &self.peer, &what, self.limit).map(drop)
    }

    /// Echoes every message of the plan.
    pub async fn echo(&mut self, plan: &EchoPlan) -> Result<(), Failure> {
        let mut message = vec![0; plan.largest() as usize];
        for bytes in &plan.sizes {
            let message = &mut message[..*bytes as usize];
            for number in 0..plan.messages {
                let what = format!("message {number} of {bytes} B was in flight over the socket");
                let one = async {
                    self.stream.read_exact(message).await?;
                    self.stream.write_all(message).await
                };
                judged(bounded(self.limit, one).await, &self.peer, &what, self.limit)?;
            }
        }
        Ok(())
    }

    /// Waits until the other side closes the socket or sends unexpected data.
    pub async fn until_closed(&mut self) {
        let _ = self.stream.peek(&mut [0; 1]).await;
    }
}

/// Exchanges messages over both paths concurrently. The socket reports a disconnect immediately, while the fabric may
/// not. It is therefore watched even when its own part is done. A side that is stalled on the fabric does not send on
/// the socket either; a timeout of the socket therefore reports the operations in flight on the fabric.
pub async fn both<A, B>(
    socket: &mut Socket,
    opened: &OpenSide,
    by_socket: impl AsyncFnOnce(&mut Socket) -> Result<A, Failure>,
    by_fabric: impl Future<Output = Result<B, Failure>>,
) -> Result<(A, B), Failure> {
    let mut by_fabric = pin!(by_fabric);
    let mut second = None;
    let first = {
        let mut by_socket = pin!(by_socket(socket));
        loop {
            tokio::select! {
                first = &mut by_socket => match first {
                    Err(Failure::Timeout(text)) if second.is_none() => {
                        return Err(Failure::Timeout(format!("{text}; over the fabric: {}", opened.rails.flow.state())));
                    }
                    first => break first?,
                },
                done = &mut by_fabric, if second.is_none() => match done {
                    Ok(done) => second = Some(done),
                    // The socket may report the cause slightly later.
                    Err(failure) => match bounded(HINDSIGHT, by_socket).await {
                        Ok(Err(cause)) if !matches!(cause, Failure::Timeout(_)) => return Err(cause),
                        _ => return Err(failure),
                    },
                },
            }
        }
    };
    if let Some(second) = second {
        return Ok((first, second));
    }
    tokio::select! {
        biased;
        second = &mut by_fabric => Ok((first, second?)),
        () = socket.until_closed() => {
            Err(Failure::Run(format!("{} disconnected while a message was in flight over the fabric", socket.peer)))
        }
    }
}

fn judged<T>(ended: Result<std::io::Result<T>, Ended>, peer: &str, what: &str, limit: Duration) -> Result<T, Failure> {
    match ended {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(Failure::Run(format!("{peer} disconnected while {what}"))),
        Err(Ended::Interrupted) => Err(Failure::Interrupted),
        Err(Ended::TimedOut) => Err(Failure::Timeout(format!(
            "timed out after {} s while {what}; {peer} does not respond",
            limit.as_secs()
        ))),
    }
}
