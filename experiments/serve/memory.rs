//! Memory of a slot: poisoned before a peer receives it, and checksummed when the peer has written.

use crate::error::Failure;
use ginlab::cuda::Buffer;
use std::ops::Range;

/// Contents of a slot before the first write.
const POISON: u8 = 0xA5;
/// Number of bytes that are written or read at a time. The tasks of other peers run in between.
const PIECE: usize = 1 << 20;

/// Returns the ranges of the pieces of a slot.
fn pieces(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..bytes).step_by(PIECE).map(move |start| start..bytes.min(start + PIECE))
}

/// Overwrites the data of the previous peer.
pub async fn poison(memory: &Buffer) -> Result<(), Failure> {
    let poison = vec![POISON; PIECE.min(memory.bytes())];
    for piece in pieces(memory.bytes()) {
        memory.write(piece.start, &poison[..piece.len()])?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Returns the CRC-32 of the first `bytes` bytes.
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
    use ginlab::cuda::{Device, MemoryLocation};
    use std::cell::Cell;
    use std::rc::Rc;

    /// A slot of several pieces is filled and checksummed while the tasks of other peers continue.
    #[tokio::test]
    async fn checksum_yields_between_chunks() {
        let memory = Device::Emulated.allocate(MemoryLocation::Host, 4 * PIECE + 1).expect("a few MiB");
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
