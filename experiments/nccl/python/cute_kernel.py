"""A kernel of the CuTe DSL that uses NCCL's GIN by nccl4py. It is a module of its own because it imports the DSL.

    CUTE_DSL_ARCH=sm_90a CUTE_DSL_KEEP=cubin python3 cute_kernel.py FILE      writes the machine code, without a GPU

The name of the kernel is written to FILE with the suffix .name.
"""

import sys
from pathlib import Path

import cutlass
import cutlass.cute as cute
import nccl.core.device.cute as device
from cutlass.cute.runtime import make_fake_stream
from nccl.core.device.cute import runtime

THREADS = 32
SIGNAL = 0


@cute.kernel
def exchange(
    comm: device.DevComm,
    send: device.Window,
    receive: device.Window,
    words: cutlass.Int32,
    times: cutlass.Int32,
    base: cutlass.Int64,
):
    """Puts `words` words to the peer `times` times, and waits for the peer's signal each time."""
    team = comm.team_world
    gin = comm.gin(device.GinBackendMask.ALL, 0)
    block = device.cta()
    layout = cute.make_layout(words)
    source = send.tensor(cutlass.Int64, layout)
    target = receive.tensor(cutlass.Int64, layout)
    peer = team.rank ^ 1
    for i in range(times):
        # Operation 0 increments the signal.
        gin.put(team, peer, receive, target, send, source, block, is_signal=True, signal_id=SIGNAL, signal_op=0)
        gin.wait_signal(block, signal=SIGNAL, least=base + i + 1)
    gin.flush(block)


@cute.jit
def run(
    comm: device.DevComm,
    send: device.Window,
    receive: device.Window,
    words: cutlass.Int32,
    times: cutlass.Int32,
    base: cutlass.Int64,
    stream,
):
    """Launches the kernel as one block."""
    exchange(comm, send, receive, words, times, base).launch(grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream)


def compiled():
    """Compiles the kernel. The arguments only describe types."""
    window = runtime.make_fake_window()
    counts = cutlass.Int32(1), cutlass.Int32(1), cutlass.Int64(0)
    return cute.compile(run, runtime.make_fake_dev_comm(), window, window, *counts, make_fake_stream())


def write(function, file: Path) -> int:
    """Writes a compiled kernel. Requires CUTE_DSL_KEEP=cubin."""
    file.write_bytes(function.artifacts.CUBIN)
    (name,) = function.kernel_info
    file.with_suffix(".name").write_text(name)
    return 0


if __name__ == "__main__":
    sys.exit(write(compiled(), Path(sys.argv[1])))
