//! The resident Jacobi kernel, which sends its rows from iteration to iteration without `quiet`, over rails that
//! deliver late.

use super::messages::late;
use super::*;
use ginlab::cuda::Stream;
use kernels::jacobi::resident::{
    JACOBI_RESIDENT, JACOBI_RESIDENT_RAILS, PLACES, ResidentArgs, row_words, shared_bytes,
};
use kernels::jacobi::{EXCHANGE_NONE, HaloLink, NORM_NEVER};

/// Points of a row, rows of a PE, and threads of a block.
const COLUMNS: u32 = 20;
const ROWS: u32 = 9;
const THREADS: u32 = 32;
/// Number of launches, and iterations of each.
const LAUNCHES: u32 = 2;
const ITERATIONS: u32 = 30;

/// Returns the bits of this PE's rows after all iterations, computed by a grid of `blocks` blocks.
fn iterated(world: &mut World, ranks: &mut Bootstrap, blocks: u32) -> Vec<u32> {
    let device = Device::Emulated;
    let (me, all) = (world.my_pe(), world.n_pes());
    let mut row = |ranks: &mut Bootstrap| world.alloc::<f32>(ranks, u64::from(COLUMNS)).unwrap();
    let [out, halo] = [(); 2].map(|()| [(); 2].map(|()| [(); 2].map(|()| row(ranks))));
    let (signals, rounds) = (world.signals(ranks, 2).unwrap(), world.signals(ranks, 2).unwrap());
    let inbox = world.alloc::<u64>(ranks, PLACES * row_words(THREADS)).unwrap();
    let buffer = |bytes: usize| device.allocate(MemoryLocation::Device, bytes).unwrap();
    let points = (ROWS * COLUMNS) as usize;
    let (field, sums, words) =
        (buffer(points * 4), buffer(8), buffer((u64::from(blocks) * PLACES * row_words(THREADS) * 8) as usize));
    let first: Vec<f32> = (0..points).map(|at| ((me as usize * points + at) as f32).sin()).collect();
    field.write(0, &first).unwrap();
    let link = buffer(size_of::<HaloLink>());
    let description = HaloLink {
        world: world.description(),
        peers: [(me + all - 1) % all, (me + 1) % all],
        out,
        halo,
        signals: [signals, signals.at(1)],
        counted: [0; 2],
        each: 1,
        rounds: [rounds, rounds.at(1)],
        exchange: EXCHANGE_NONE,
        neighbours: 1,
        done: std::ptr::null(),
        trace: std::ptr::null(),
    };
    link.write(0, &[description]).unwrap();
    let kernel = if world.is_mapped((me + 1) % all) { JACOBI_RESIDENT } else { JACOBI_RESIDENT_RAILS };
    let shared = shared_bytes(ROWS.div_ceil(blocks), THREADS);
    let function = device.function(&kernel, THREADS).unwrap().with_shared_memory(shared).unwrap();
    let stream = Stream::new(&device).unwrap();
    world.prepare().unwrap();
    world.barrier(ranks).unwrap();
    for number in 0..LAUNCHES {
        let args = ResidentArgs {
            field: field.pointer(),
            rows: ROWS,
            nx: COLUMNS,
            pitch: COLUMNS,
            iterations: ITERATIONS,
            first: 1 + number * ITERATIONS,
            shared_bytes: shared,
            norm: NORM_NEVER,
            sums: sums.pointer(),
            words: words.pointer(),
            inbox,
            link: link.pointer(),
        };
        // SAFETY: the buffers outlive the wait below.
        unsafe { stream.launch(&function, blocks, THREADS, args) }.unwrap();
    }
    world.wait_for_stream(ranks, "rows", &stream).unwrap();
    // No PE's memory may be freed before all have ended.
    world.barrier(ranks).unwrap();
    let mut last = vec![0u32; points];
    field.read(0, &mut last).unwrap();
    last
}

#[test]
fn rows_of_different_iterations_are_not_confused() {
    let (mut failed, mut runs) = (Vec::new(), 0);
    for count in [2, 3] {
        for blocks in [1, 2] {
            let expected = pes(count, &emulated(PePath::NvLink), |world, ranks| iterated(world, ranks, blocks));
            for &rule in Rule::VARIANTS {
                for seed in 1..=messages::seeds(3) {
                    runs += 1;
                    let found = pes(count, &late(seed, rule), |world, ranks| iterated(world, ranks, blocks));
                    if found != expected {
                        failed.push(format!("{rule}, {count} PEs, {blocks} blocks, seed {seed}"));
                    }
                }
            }
        }
    }
    eprintln!("{} of {runs} runs wrong", failed.len());
    assert!(failed.is_empty(), "{} of {runs} runs: {failed:#?}", failed.len());
}
