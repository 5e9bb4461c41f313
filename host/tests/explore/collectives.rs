//! The real kernels: collectives between nodes of one PE each, by puts and by messages, and the all-to-all of `ginlab
//! shmem`. Each kernel is launched several times with different data.

use super::seat::{OBJECT, TestPe};
use kernels::collective::{
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, CollectiveKernelArgs, F32, REDUCE_SCATTER, messages, puts,
    slice_bytes,
};
use kernels::gin::Program;
use kernels::pattern::seed;
use kernels::ring::Status;
use kernels::shmem::{ShmemKernelArgs, exchange};

type CallResult = Result<(), Status>;
type Kernel = cuda_std::Kernel<Program<CollectiveKernelArgs>>;

/// Number of launches of a kernel.
const LAUNCHES: u32 = 3;

pub fn all_to_all_by_messages(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_TO_ALL, false), &messages::COLLECTIVE_MESSAGES_BLOCK)
}

pub fn all_to_all_by_puts(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_TO_ALL, false), &puts::COLLECTIVE_NODES_BLOCK)
}

pub fn all_gather_by_puts(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_GATHER, false), &puts::COLLECTIVE_NODES_BLOCK)
}

pub fn broadcast_by_messages(seat: &TestPe) -> CallResult {
    launches(seat, (BROADCAST, false), &messages::COLLECTIVE_MESSAGES_BLOCK)
}

pub fn broadcast_by_puts(seat: &TestPe) -> CallResult {
    launches(seat, (BROADCAST, false), &puts::COLLECTIVE_NODES_BLOCK)
}

pub fn all_reduce_by_messages(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_REDUCE, false), &messages::COLLECTIVE_MESSAGES_BLOCK)
}

/// Like [`all_reduce_by_messages`], with the result in the source buffer, from which messages are sent.
pub fn all_reduce_in_place(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_REDUCE, true), &messages::COLLECTIVE_MESSAGES_BLOCK)
}

pub fn all_reduce_by_puts(seat: &TestPe) -> CallResult {
    launches(seat, (ALL_REDUCE, false), &puts::COLLECTIVE_NODES_BLOCK)
}

pub fn reduce_scatter_by_puts(seat: &TestPe) -> CallResult {
    launches(seat, (REDUCE_SCATTER, false), &puts::COLLECTIVE_NODES_BLOCK)
}

/// Returns 4-byte numbers. They are small integers, so that sums are exact.
fn numbers(pe: u32, launch: u32, first: u64, bytes: u64) -> Vec<f32> {
    (first / 4..(first + bytes) / 4).map(|at| (pe * 100 + launch * 1000) as f32 + at as f32).collect()
}

fn as_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn launches(seat: &TestPe, (operation, in_place): (u32, bool), kernel: &Kernel) -> CallResult {
    let function = kernel.native().expect("a native kernel");
    let pes = u64::from(seat.pes);
    // Data for all PEs is sent as one message by the message kernels, and in chunks by the put kernels.
    let by_messages = kernel.name().contains("messages");
    let whole_only = by_messages && (operation == ALL_REDUCE || operation == BROADCAST);
    let bytes = if whole_only { OBJECT } else { OBJECT * pes };
    let chunk = bytes.div_ceil(pes).next_multiple_of(16);
    let whole = if whole_only { bytes } else { chunk };
    let (from, to) = (seat.objects(0, pes), seat.objects(if in_place { 0 } else { 4 }, pes));
    let args = CollectiveKernelArgs {
        operation,
        element: F32,
        flags: 0,
        local: seat.local,
        root: 0,
        warmup: 0,
        turns: 1,
        chunk,
        bytes,
        whole,
        slice: slice_bytes(whole, 1),
        packet: 1 << 40,
        parts: 1,
        part: slice_bytes(chunk, 1),
        from: from.slice(0, if operation == ALL_GATHER { chunk } else { bytes }),
        to: to.slice(0, if operation == REDUCE_SCATTER { chunk } else { bytes }),
        scratch: seat.objects(8, 2 * pes),
        inboxes: [seat.inbox(0), seat.inbox(1)],
        signals: seat.signal(0),
        // These kernels have no queue.
        queue: core::ptr::null(),
        queue_signals: seat.signal(0),
        state: seat.state,
        times: seat.times,
    };
    for launch in 1..=LAUNCHES {
        seat.doing("launch", launch);
        let given = |pe: u32| as_bytes(&numbers(pe, launch, 0, args.from.len()));
        seat.write(args.to, &vec![0x55; args.to.len() as usize]);
        seat.write(args.from, &given(seat.me));
        // SAFETY: the arguments refer to this world's heap, and state and timestamps suffice for one block.
        unsafe { function(Program { world: seat.world, args }) };
        if seat.has_failed() {
            return Err(Status::ENDED);
        }
        let of = |pe: u32, first: u64, length: u64| given(pe)[first as usize..(first + length) as usize].to_vec();
        let sum = |first: u64, length: u64| {
            let mut sum = vec![0.0; length as usize / 4];
            for pe in 0..seat.pes {
                sum.iter_mut().zip(numbers(pe, launch, first, length)).for_each(|(sum, number)| *sum += number);
            }
            as_bytes(&sum)
        };
        let mine = u64::from(seat.me) * chunk;
        let expected = match operation {
            ALL_TO_ALL => (0..seat.pes).flat_map(|pe| of(pe, mine, chunk)).collect(),
            ALL_GATHER => (0..seat.pes).flat_map(given).collect(),
            REDUCE_SCATTER => sum(mine, chunk),
            ALL_REDUCE => sum(0, bytes),
            _ => given(0),
        };
        seat.expect_bytes(args.to, &expected, "the result");
    }
    Ok(())
}

/// Runs the all-to-all of `ginlab shmem` by puts, with one signal for all PEs.
pub fn shmem_all_to_all_by_puts(seat: &TestPe) -> CallResult {
    shmem(seat, exchange::shmem_all_to_all_puts_block)
}

/// Runs the all-to-all of `ginlab shmem` by messages.
pub fn shmem_all_to_all_by_messages(seat: &TestPe) -> CallResult {
    shmem(seat, exchange::shmem_all_to_all_block)
}

fn shmem(seat: &TestPe, kernel: unsafe fn(Program<ShmemKernelArgs>)) -> CallResult {
    let pes = u64::from(seat.pes);
    for launch in 0..LAUNCHES {
        seat.doing("launch", launch);
        // Separate objects per launch, because a PE may start the next launch while others are still in this one.
        let first = 2 * pes * u64::from(launch);
        let (from, to) = (seat.objects(first, pes), seat.objects(first + pes, pes));
        for pe in 0..seat.pes {
            seat.fill(from.slice(u64::from(pe) * OBJECT, OBJECT), seed(seat.me, launch, pe));
        }
        let args = ShmemKernelArgs {
            places: 1,
            step: 0,
            to_step: 0,
            moves: 0,
            warmup: 0,
            iterations: 1,
            rounds: launch,
            counted: u64::from(launch) * pes,
            from,
            to,
            // SAFETY: the value is not used.
            word: unsafe { kernels::gin::Sym::from_parts(from.offset(), 1) },
            signal: seat.signal(0),
            exchanged: seat.signal(16),
            streamed: seat.signal(8),
            inbox: seat.inbox(0),
            peer: 0,
            begins: 0,
            times: seat.times,
        };
        // SAFETY: the arguments refer to this world's heap, and there are timestamps for one iteration.
        unsafe { kernel(Program { world: seat.world, args }) };
        if seat.has_failed() {
            return Err(Status::ENDED);
        }
        for pe in 0..seat.pes {
            seat.expect(to.slice(u64::from(pe) * OBJECT, OBJECT), seed(pe, launch, seat.me), "the result");
        }
    }
    Ok(())
}
