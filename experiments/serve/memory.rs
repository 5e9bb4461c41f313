//! The memory of a place: poisoned before a peer gets it, summed when the peer has written.

use crate::error::Failure;
use ginlab::cuda::Buffer;
use std::ops::Range;

/// What a place holds before anybody writes there.
const POISON: u8 = 0xA5;
/// Pieces of a place that are written or read at a time: in between the other peers have their turn.
const PIECE: usize = 1 << 20;

/// Where a place begins and ends, piece by piece.
fn pieces(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(PIECE).map(move |start| start..bytes.min(start + PIECE))
}

/// Takes away what the last peer has left.
pub async fn poison(memory: &Buffer) -> Result<(), Failure> {
    let poison = vec![POISON; PIECE.min(memory.bytes())];
    for piece in pieces(memory.bytes()) {
        memory.write(piece.start, &poison[..piece.len()])?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// The CRC-32 of the first bytes.
pub async fn checksum(memory: &Buffer, bytes: usize) -> Result<u32, Failure> {
    let (mut hasher, mut arrived) = (crc32fast::Hasher::new(), vec![0; PIECE.min(bytes)]);
    for piece in pieces(bytes) {
        let arrived = &mut arrived[..piece.len()];
        memory.read(piece.start, arrived)?;
        hasher.update(arrived);
        tokio::task::yield_now().await;
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ginlab::cuda::{Device, Place};
    use std::cell::Cell;
    use std::rc::Rc;

    /// A place of many pieces is filled and summed while the other peers' tasks go on.
    #[tokio::test]
    async fn the_others_have_their_turn_between_two_pieces() {
        let memory = Device::Emulated.allocate(Place::Host, 4 * PIECE + 1).expect("a few MiB");
        let turns = Rc::new(Cell::new(0));
        let other = {
            let turns = Rc::clone(&turns);
            async move {
                loop {
                    turns.set(turns.get() + 1);
                    tokio::task::yield_now().await;
                }
            }
        };
        let local = tokio::task::LocalSet::new();
        local.spawn_local(other);
        let work = async {
            poison(&memory).await?;
            let poisoned = turns.get();
            Ok::<_, Failure>((poisoned, checksum(&memory, memory.bytes()).await?, turns.get()))
        };
        let Ok((poisoned, crc, summed)) = local.run_until(work).await else { panic!("memory of this process") };
        assert!(poisoned >= 4 && summed >= poisoned + 4, "{poisoned}, {summed}");
        assert_eq!(crc, crc32fast::hash(&vec![POISON; 4 * PIECE + 1]));
    }
}
