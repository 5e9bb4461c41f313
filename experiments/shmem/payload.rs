//! What a turn moves: where its bytes come from, and whether they have arrived.

use super::args::{Case, Tuple};
use super::data;
use super::measure::Shmem;
use crate::error::Failure;
use ginlab::measure::pattern;

/// What lies in a destination before, and between the places of a source.
const POISON: u8 = 0xA5;
/// Bytes of a line of L1, and of more lines than L1 has (H100, H200: 256 KiB).
const LINE: u64 = 128;
const BEYOND_L1: u64 = 1 << 20;

impl Shmem {
    pub(super) fn payload(tuple: &Tuple, pes: u64) -> u64 {
        match tuple.case {
            Case::AllToAll => tuple.bytes * pes,
            Case::DataOrder => data::payload(pes),
            _ => tuple.bytes,
        }
    }

    /// From where a get in a loop takes its bytes: so many places, and the bytes from one to the next. Gets of one place again and again would be loads
    /// from L1, which nothing empties between them: 8 bytes of another GPU in 0.17 us (H200).
    pub(super) fn places(tuple: &Tuple) -> (u32, u64) {
        let step = tuple.bytes.next_multiple_of(LINE);
        let places = match tuple.case {
            Case::GetLatency => (BEYOND_L1 / step.max(LINE)).max(1),
            _ => 1,
        };
        (1 << places.ilog2(), step)
    }

    /// The longest source and target of all tuples.
    pub(super) fn longest(tuples: &[Tuple], pes: u64) -> [u64; 2] {
        let (mut source, mut target) = (8, 8);
        for tuple in tuples {
            let (places, step) = Shmem::places(tuple);
            let payload = Shmem::payload(tuple, pes);
            target = target.max(payload);
            source = source.max(u64::from(places - 1) * step + payload);
        }
        [source, target]
    }

    /// Payload to send, poison where it is to arrive.
    pub(super) fn fill(&mut self, tuple: &Tuple) -> Result<(), Failure> {
        let bytes = Shmem::payload(tuple, u64::from(self.world.n_pes())) as usize;
        let mut payload = vec![0u8; bytes];
        pattern::fill(&mut payload, self.seed(self.world.my_pe()));
        let (places, step) = Shmem::places(tuple);
        let mut source = vec![POISON; (places - 1) as usize * step as usize + bytes];
        for place in 0..places as usize {
            source[place * step as usize..][..bytes].copy_from_slice(&payload);
        }
        self.world.write(self.from, &source)?;
        payload.fill(POISON);
        Ok(self.world.write(self.to, &payload)?)
    }

    fn seed(&self, pe: u32) -> u64 {
        kernels::pattern::seed(pe, self.number, 0)
    }

    /// Wrong bytes of this PE's destination.
    pub(super) fn wrong(&self, tuple: &Tuple, pairs: bool, begins: bool) -> Result<u64, Failure> {
        let (me, pes) = (self.world.my_pe(), self.world.n_pes());
        let bytes = tuple.bytes as usize;
        let expected: Vec<(u32, usize, usize)> = match tuple.case {
            // From each PE its block for us.
            Case::AllToAll => (0..pes).map(|pe| (pe, me as usize * bytes, pe as usize * bytes)).collect(),
            Case::PutSignalPingPong | Case::PutSignalSetPingPong | Case::MessagePingPong if pairs => {
                vec![(me ^ 1, 0, 0)]
            }
            Case::PutLatency | Case::PutLatencyLoaded | Case::PutBandwidth | Case::PutSignalBandwidth
                if pairs && !begins =>
            {
                vec![(me ^ 1, 0, 0)]
            }
            Case::GetLatency | Case::GetBandwidth if pairs && begins => vec![(me ^ 1, 0, 0)],
            _ => return Ok(0),
        };
        let arrived = self.world.read(self.to.slice(0, Shmem::payload(tuple, u64::from(pes))))?;
        let mut payload = vec![0u8; arrived.len()];
        let mut wrong = 0;
        for (pe, sent, at) in expected {
            pattern::fill(&mut payload, self.seed(pe));
            let pairs = payload[sent..sent + bytes].iter().zip(&arrived[at..at + bytes]);
            wrong += pairs.filter(|(sent, arrived)| sent != arrived).count() as u64;
        }
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Scope;
    use proptest::prelude::*;

    fn tuple(case: Case, bytes: u64) -> Tuple {
        let (warmup, iterations) = (1, 1);
        Tuple { case, scope: Scope::Block, bytes, grid: 1, block: 32, warmup, iterations, by_messages: false }
    }

    proptest! {
        #[test]
        fn a_get_finds_its_bytes_in_no_line_of_its_last_turns(bytes in 0u64..3 << 20) {
            let get = tuple(Case::GetLatency, bytes);
            let (places, step) = Shmem::places(&get);
            prop_assert!(places.is_power_of_two());
            // One behind the other, none in a line of the one before, and all of them more than L1 holds.
            prop_assert!(step >= bytes && step.is_multiple_of(LINE));
            prop_assert!(bytes == 0 || u64::from(places) * step >= BEYOND_L1 / 2);
            let [source, target] = Shmem::longest(&[get], 2);
            prop_assert!(source >= u64::from(places - 1) * step + bytes && target >= bytes);
            prop_assert_eq!(Shmem::places(&tuple(Case::PutLatency, bytes)).0, 1);
        }
    }
}
