//! A rail without a network, for measurements of the proxy's own cost.

use super::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake};

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of outstanding transfers. A poll completes all of them.
const OUTSTANDING: usize = 8192;

const LIMITS: RailLimits = RailLimits {
    max_transfer_bytes: u64::MAX,
    max_outstanding: OUTSTANDING,
    immediate_bytes: 4,
    link_bits_per_second: None,
    cuda_memory: true,
};

/// Totals of the transfers posted on null rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullTotals {
    /// Number of transfers.
    pub transfers: u64,
    /// Sum of their bytes, wrapping.
    pub bytes: u64,
    /// Sum of [`transfer_checksum`], wrapping.
    pub checksum: u64,
}

/// Combined totals of several null rails, for readers that do not own them. A rail adds transfers when it completes
/// them.
#[derive(Clone, Debug, Default)]
pub struct NullCounts(Arc<Mutex<Vec<Arc<OfRail>>>>);

/// Totals of one rail. Written only by the rail's thread.
type OfRail = CachePadded<[AtomicU64; 3]>;

impl NullCounts {
    /// Returns the totals of all transfers that the rails have completed.
    #[must_use]
    pub fn sum(&self) -> NullTotals {
        let rails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let add = |sum: NullTotals, rail: &Arc<OfRail>| {
            let [transfers, bytes, checksum] = [0, 1, 2].map(|which: usize| rail[which].load(Ordering::Relaxed));
            NullTotals {
                transfers: sum.transfers + transfers,
                bytes: sum.bytes.wrapping_add(bytes),
                checksum: sum.checksum.wrapping_add(checksum),
            }
        };
        rails.iter().fold(NullTotals::default(), add)
    }
}

/// A rail that completes every transfer at the next poll. It moves no bytes and raises no immediates, but it counts
/// transfers, so that an experiment can verify that each command arrived exactly once.
#[derive(Debug, Default)]
pub struct NullRail {
    pending: Vec<u64>,
    counted: NullTotals,
    told: Arc<OfRail>,
    peers: usize,
}

/// A region of a [`NullRail`]. Only its length is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullRegion {
    bytes: u64,
}

/// Returns the contribution of one transfer to the checksum of a [`NullRail`]. The wrapping sum does not depend on the
/// order of transfers.
#[inline]
#[must_use]
pub const fn transfer_checksum(local_offset: u64, remote_offset: u64, bytes: u64) -> u64 {
    // Odd multipliers keep every bit of each field. The last rounds spread a difference over the word, so that missing
    // and doubled transfers do not cancel out.
    let mixed = local_offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ remote_offset.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(31)
        ^ bytes.wrapping_mul(0x1656_67b1_9e37_79f9).rotate_left(17);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32) | 1
}

impl NullRail {
    /// Creates a rail with totals of 0.
    #[must_use]
    pub fn new() -> Self {
        Self { pending: Vec::with_capacity(OUTSTANDING), ..Self::default() }
    }

    /// Creates a rail that also adds to `counts`.
    #[must_use]
    pub fn counted_by(counts: &NullCounts) -> Self {
        let rail = Self::new();
        counts.0.lock().unwrap_or_else(PoisonError::into_inner).push(rail.told.clone());
        rail
    }

    /// Returns the totals posted so far.
    #[must_use]
    pub fn counted(&self) -> NullTotals {
        self.counted
    }

    #[inline]
    fn take(&mut self, region: &NullRegion, t: &Transfer) -> Result<Post, FabricError> {
        let within = |offset: u64, bytes: u64| offset <= bytes && t.bytes <= bytes - offset;
        if !within(t.local_offset, region.bytes) || !within(t.remote_offset, t.remote.bytes) || t.peer >= self.peers {
            return Err(self.refuse(region, t));
        }
        if self.pending.len() >= OUTSTANDING {
            return Ok(Post::Again);
        }
        self.pending.push(t.token);
        let counted = &mut self.counted;
        counted.transfers += 1;
        counted.bytes = counted.bytes.wrapping_add(t.bytes);
        counted.checksum = counted.checksum.wrapping_add(transfer_checksum(t.local_offset, t.remote_offset, t.bytes));
        Ok(Post::Accepted)
    }

    #[cold]
    fn refuse(&self, region: &NullRegion, t: &Transfer) -> FabricError {
        let text = format!(
            "offsets {} of {} B and {} of {} B, {} peers",
            t.local_offset, region.bytes, t.remote_offset, t.remote.bytes, self.peers
        );
        mistake("null", format!("transfer of {} B with peer {}", t.bytes, t.peer), text)
    }
}

impl Rail for NullRail {
    type Region = NullRegion;

    fn name(&self) -> &str {
        "null"
    }

    fn limits(&self) -> &RailLimits {
        &LIMITS
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }

    fn add_peer(&mut self, _address: &[u8]) -> Result<usize, FabricError> {
        self.peers += 1;
        Ok(self.peers - 1)
    }

    fn remove_peer(&mut self, _peer: usize) -> Result<(), FabricError> {
        Err(self.has_none("peers that leave"))
    }

    unsafe fn register(&mut self, memory: MemoryRange, _access: Access) -> Result<NullRegion, FabricError> {
        Ok(NullRegion { bytes: memory.bytes as u64 })
    }

    fn remote(&self, region: &NullRegion) -> RemoteRegion {
        RemoteRegion { key: 0, base: 0, bytes: region.bytes }
    }

    #[inline]
    unsafe fn write(&mut self, region: &NullRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.take(region, transfer)
    }

    #[inline]
    unsafe fn read(&mut self, region: &NullRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.take(region, transfer)
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // Publish the totals before the caller can observe the completions.
        let NullTotals { transfers, bytes, checksum } = self.counted;
        for (told, value) in self.told.iter().zip([transfers, bytes, checksum]) {
            told.store(value, Ordering::Relaxed);
        }
        completions.extend(self.pending.drain(..).map(|token| Completion::Done { token }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn open() -> (NullRail, NullRegion, RemoteRegion) {
        let mut rail = NullRail::new();
        rail.insert_peers(&[rail.address().expect("an address")]).expect("a peer");
        // SAFETY: a null rail does not access the memory.
        let region =
            unsafe { rail.register(MemoryRange { address: 0, bytes: 1 << 20, cuda_device: None }, Access::ALL) }
                .expect("a region");
        let remote = rail.remote(&region);
        (rail, region, remote)
    }

    fn put(remote: RemoteRegion, local_offset: u64, bytes: u64, token: u64) -> Transfer {
        Transfer::new(local_offset, (0, remote, local_offset / 2), bytes, token)
    }

    #[test]
    fn peers_are_numbered_from_0() {
        let mut rail = NullRail::new();
        let numbers: Vec<usize> = (0..3).map(|_| rail.add_peer(&[]).expect("a peer")).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn checksum_depends_on_transfers_not_order(
            puts in proptest::collection::vec((0u64..1 << 18, 1u64..4096), 1..50), swap: usize
        ) {
            let expected = puts.iter().fold(0u64, |sum, &(offset, bytes)| {
                sum.wrapping_add(transfer_checksum(offset, offset / 2, bytes))
            });
            let mut puts = puts;
            let at = swap % puts.len();
            puts.rotate_left(at);
            let (mut rail, region, remote) = open();
            for (token, &(offset, bytes)) in puts.iter().enumerate() {
                // SAFETY: a null rail does not access the memory.
                let post = unsafe { rail.write(&region, &put(remote, offset, bytes, token as u64)) };
                prop_assert_eq!(post, Ok(Post::Accepted));
            }
            let bytes = puts.iter().map(|put| put.1).sum::<u64>();
            prop_assert_eq!(rail.counted(), NullTotals { transfers: puts.len() as u64, bytes, checksum: expected });
            // A duplicate that replaces another transfer is detected.
            if puts.len() > 1 && puts[0] != puts[1] {
                let (lost, doubled) = (puts[0], puts[1]);
                let wrong = expected
                    .wrapping_sub(transfer_checksum(lost.0, lost.0 / 2, lost.1))
                    .wrapping_add(transfer_checksum(doubled.0, doubled.0 / 2, doubled.1));
                prop_assert_ne!(wrong, expected);
            }
        }
    }

    #[test]
    fn each_token_completes_once_at_next_poll() {
        let (mut rail, region, remote) = open();
        for token in 0..OUTSTANDING as u64 {
            // SAFETY: a null rail does not access the memory.
            assert_eq!(unsafe { rail.write(&region, &put(remote, 8, 8, token)) }, Ok(Post::Accepted));
        }
        // SAFETY: a null rail does not access the memory.
        assert_eq!(unsafe { rail.read(&region, &put(remote, 8, 8, 0)) }, Ok(Post::Again));
        let mut completions = Vec::new();
        rail.poll(&mut completions).expect("a poll");
        let tokens: Vec<_> = completions
            .drain(..)
            .map(|completion| match completion {
                Completion::Done { token } => token,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tokens, (0..OUTSTANDING as u64).collect::<Vec<_>>());
        rail.poll(&mut completions).expect("a poll");
        assert!(completions.is_empty());
    }

    #[test]
    fn bad_offsets_are_refused_and_not_counted() {
        let (mut rail, region, remote) = open();
        // SAFETY: a null rail does not access the memory.
        let error = unsafe { rail.write(&region, &put(remote, u64::MAX, 8, 0)) }.expect_err("out of range");
        assert!(error.to_string().contains("transfer of 8 B"), "{error}");
        assert_eq!(rail.counted(), NullTotals::default());
    }

    /// Run it with `cargo test --release --lib -- --ignored --nocapture null`.
    #[test]
    #[ignore = "a measurement, for a quiet machine"]
    fn measure_cost_of_put() {
        let (mut rail, region, remote) = open();
        let mut completions = Vec::with_capacity(OUTSTANDING);
        let (rounds, batch) = (200_000u64, 64);
        let start = std::time::Instant::now();
        for round in 0..rounds {
            for token in 0..batch {
                let transfer = put(remote, std::hint::black_box(round % 1024), 64, token);
                // SAFETY: a null rail does not access the memory.
                let post = unsafe { rail.write(&region, &transfer) };
                assert_eq!(post, Ok(Post::Accepted));
            }
            rail.poll(&mut completions).expect("a poll");
            completions.clear();
        }
        let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / (rounds * batch) as f64;
        eprintln!("null rail: {nanoseconds:.2} ns per put and completion, counted {:x?}", rail.counted());
    }
}
