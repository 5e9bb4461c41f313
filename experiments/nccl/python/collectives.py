"""NCCL's collectives over symmetric windows from Python. NCCL's own symmetric kernels then use GIN between nodes.

    pip install "nccl4py[cu13]"
    ginlab nccl --nccl NCCL/lib --np 2 -- python3 collectives.py

Every element of each result is verified. Rank 0 prints one line of CSV for each case. The table of `ginlab nccl` shows
how many puts NCCL has sent by the plugin; a collective for which NCCL chooses another kernel sends its data over
sockets.
Variables: COLLECTIVE_ITERATIONS (default 20), COLLECTIVE_MOST (largest size in bytes of a rank's part, default 4 MiB).
"""

from __future__ import annotations

import os
import sys

import numpy as np
from cuda.bindings import driver

from common import HEADER, Array, Rank, cuda, nccl, now

SIZES = [4 << 10, 256 << 10, 4 << 20]
FLOAT = np.dtype(np.float32)


def values(rank: int, length: int) -> np.ndarray:
    """Returns the input of a rank: small integers, so that sums are exact."""
    return ((np.arange(length) * 7 + rank * 13) % 251).astype(FLOAT)


def cases(rank: Rank, part: int):
    """Yields the name of each collective, its input and output lengths, its call, and its expected result."""
    ranks, me, stream = rank.ranks, rank.rank, rank.stream
    whole = part * ranks

    def source(length: int) -> Array:
        return Array(rank.send, length, "<f4")

    def target(length: int) -> Array:
        return Array(rank.receive, length, "<f4")

    inputs = [values(other, whole) for other in range(ranks)]
    total = sum(inputs)
    comm = rank.comm
    mine = slice(me * part, (me + 1) * part)
    gathered = np.concatenate([found[:part] for found in inputs])
    exchanged = np.concatenate([found[mine] for found in inputs])

    def gather() -> None:
        comm.allgather(source(part), target(whole), stream=stream)

    def scatter() -> None:
        comm.reduce_scatter(source(whole), target(part), nccl.SUM, stream=stream)

    def reduce() -> None:
        comm.allreduce(source(part), target(part), nccl.SUM, stream=stream)

    def exchange() -> None:
        comm.alltoall(source(whole), target(whole), stream=stream)

    yield "allgather", part, whole, gather, gathered
    yield "reduce_scatter", whole, part, scatter, total[mine]
    yield "allreduce", part, part, reduce, total[:part]
    yield "alltoall", whole, whole, exchange, exchanged


def main() -> int:
    most = int(os.environ.get("COLLECTIVE_MOST", 4 << 20))
    iterations = int(os.environ.get("COLLECTIVE_ITERATIONS", "20"))
    rank = Rank(most * int(os.environ.get("WORLD_SIZE", "1")))
    if rank.rank == 0:
        print(HEADER, flush=True)
    for size in [size for size in SIZES if size <= most]:
        for name, taken, given, call, expected in cases(rank, size // FLOAT.itemsize):
            data = values(rank.rank, taken)
            cuda(driver.cuMemcpyHtoDAsync(rank.send, data.ctypes.data, data.nbytes, rank.handle()))
            cuda(driver.cuMemsetD8Async(rank.receive, 0xEE, given * FLOAT.itemsize, rank.handle()))
            rank.wait()
            call()
            rank.wait()
            begun = now()
            for _ in range(iterations):
                call()
            rank.wait()
            took = now() - begun
            found = rank.read(given * FLOAT.itemsize // 8).view(FLOAT)
            rank.meet()
            rank.row(f"window_{name}", size, iterations, took, int(np.count_nonzero(found != expected)))
    return rank.close()


if __name__ == "__main__":
    sys.exit(main())
