//! Role 0 as a copy engine performs it. One copy writes the payloads of all instances, and another copy writes their
//! signals.

use super::pe::{Pe, STRIDE};
use crate::error::Failure;
use ginlab::cuda::{DeviceError, Launch, Stream, wait_for};
use kernels::litmus::{LANES, LitmusKernelArgs, Participant, SETS};

/// Runs all rounds. If `one_stream` is true, both copies are in one stream.
pub fn run(pe: &Pe, args: &LitmusKernelArgs, one_stream: bool) -> Result<(), Failure> {
    let signals = &pe.streams[if one_stream { 2 } else { 3 }];
    for round in args.first_round..args.first_round + args.rounds {
        let everyone = || (0..args.groups).map(|group| Participant::on_cpu(args, 0, group));
        // SAFETY: the memory of the flags is host memory, with a flag per role and group.
        if !everyone().all(|one| unsafe { one.start(round) }) {
            return Ok(());
        }
        copy(pe, args, round, [&pe.streams[2], signals])?;
        // SAFETY: the flags are in host memory, with a flag per role and group.
        if !everyone().all(|one| unsafe { one.end(round) }) {
            return Ok(());
        }
        for one in everyone() {
            // SAFETY: results and counts are also in host memory, with the sizes of the layout, and this thread is the
            // only one that counts.
            (0..LANES).for_each(|lane| unsafe { one.count(lane, round, 0) });
        }
    }
    Ok(())
}

/// Copies the values of a round to the locations of all instances, and waits for the copies.
fn copy(pe: &Pe, args: &LitmusKernelArgs, round: u64, streams: [&Stream; 2]) -> Result<(), DeviceError> {
    let Some(sources) = &pe.sources else { return Ok(()) };
    let words = (args.groups * LANES * STRIDE) as usize;
    let bytes = words * 8;
    let set = round % u64::from(SETS) * bytes as u64;
    for index in 0..2 {
        sources.write(index * bytes, &vec![Participant::value(round) + index as u64; words])?;
    }
    for (index, stream) in streams.into_iter().enumerate() {
        let source = sources.address() + (index * bytes) as u64;
        // SAFETY: the source is not written before the copy has ended. The destination is a set of the locations. The
        // kernel reads it concurrently by atomic loads, for which any value is valid. The test studies these concurrent
        // reads.
        unsafe { stream.copy(args.locations[index] as u64 + set, source, bytes as u64) }?;
    }
    for stream in streams {
        let event = stream.mark()?;
        wait_for(Launch::ENDING, || event.is_complete(), || Ok::<(), DeviceError>(()))?;
    }
    Ok(())
}
