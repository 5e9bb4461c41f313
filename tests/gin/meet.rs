//! Kernels whose threads do not make a scope's calls together: the launch fails, and the message contains both places
//! in the kernel's source.

use super::{emulated, launch, pes};
use cuda_std::thread;
use ginlab::gin::{PePath, Program};
use kernels::gin::{Block, Warp};

/// Source line of the calls of [`two_calls`].
const TWO_CALLS: u32 = line!() + 5;

/// Thread 3 waits in another call than the others.
unsafe fn two_calls(program: Program<u32>) {
    let mut line = program.world.context(Block);
    let _ = if thread::thread_idx_x() == 3 { line.fence() } else { line.quiet() };
}

/// Like [`two_calls`], but in a warp.
unsafe fn two_calls_of_a_warp(program: Program<u32>) {
    let mut line = program.world.context(Warp::this());
    let _ = if thread::thread_idx_x() == 3 { line.fence() } else { line.quiet() };
}

/// Source lines of the calls of [`one_leaves`].
const LEAVES: [u32; 2] = [line!() + 5, line!() + 9];

/// Thread 3 returns after the first call, and the others make the next one.
unsafe fn one_leaves(program: Program<u32>) {
    let mut line = program.world.context(Block);
    let quiet = line.quiet();
    if quiet.is_err() || thread::thread_idx_x() == 3 {
        return;
    }
    let _ = line.barrier_all();
}

#[test]
fn diverged_threads_are_named_with_source_lines() {
    type Case = (unsafe fn(Program<u32>), [u32; 2], &'static str);
    let kernels: [Case; 3] = [
        (two_calls, [TWO_CALLS; 2], "all threads of a block must meet at the same barrier"),
        (two_calls_of_a_warp, [TWO_CALLS + 6; 2], "must make the same call with the same mask"),
        (one_leaves, LEAVES, "thread 3 has returned"),
    ];
    for (kernel, lines, said) in kernels {
        let texts = pes(1, &emulated(PePath::NvLink), |world, ranks| {
            launch(world, ranks, kernel, (1, 20), 0).unwrap_err().to_string()
        });
        let text = &texts[0];
        assert!(text.starts_with("emulated device: block 0: ") && text.contains(said), "{text}");
        for line in lines {
            assert!(text.contains(&format!("{}:{line}:", file!())), "line {line}: {text}");
        }
        assert_eq!(text.matches(file!()).count(), 2, "{text}");
    }
}
