"""Host-initiated one-sided calls of NCCL from Python: `put_signal` and `wait_signal`, in a stream and in a CUDA graph.

    pip install "nccl4py[cu13]"
    ginlab nccl --nccl NCCL/lib --np 2 -- python3 put_signal.py

Pairs of ranks put 8 B to 64 MiB to each other and wait for the peer's signal. Every word is verified. Rank 0 prints one
line of CSV for each case. Variables: PUT_ITERATIONS (default 200), PUT_REPLAYS of the graph (default 1000), PUT_MOST
(largest size in bytes, default 64 MiB), PUT_CASES (default stream,graph).
"""

from __future__ import annotations

import os
import sys

import numpy as np
from cuda.bindings import driver

from common import HEADER, Array, Rank, cuda, nccl, now, pattern

WARM_UP = 5
SIZES = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20]
GRAPH_SIZES = [8, 4 << 10, 256 << 10]


class Exchange:
    """One put and one wait on every rank."""

    def __init__(self, rank: Rank, size: int) -> None:
        self.rank = rank
        self.source = Array(rank.send, size // 8)

    def once(self) -> None:
        rank = self.rank
        rank.comm.put_signal(self.source, rank.peer, rank.receive_window, 0, stream=rank.stream)
        rank.comm.wait_signal(nccl.WaitSignalDesc(peer=rank.peer), stream=rank.stream)


def wrong_words(rank: Rank, words: int, round_: int) -> int:
    """Returns the number of words of the target window that the peer has not put."""
    expected = pattern(rank.peer, rank.rank, words, round_)
    return int(np.count_nonzero(rank.read(words) != expected))


def in_stream(rank: Rank, size: int, iterations: int, round_: int) -> None:
    words = size // 8
    rank.write(pattern(rank.rank, rank.peer, words, round_), size)
    rank.meet()
    exchange = Exchange(rank, size)
    for _ in range(WARM_UP):
        exchange.once()
    rank.wait()
    begun = now()
    for _ in range(iterations):
        exchange.once()
    rank.wait()
    took = now() - begun
    wrong = wrong_words(rank, words, round_)
    rank.meet()
    rank.row("put_signal", size, iterations, took, wrong)


def in_graph(rank: Rank, size: int, replays: int, round_: int) -> None:
    """Captures one exchange, and replays it. Each tenth of the replays puts another payload."""
    words, parts = size // 8, 10
    exchange = Exchange(rank, size)
    cuda(driver.cuStreamBeginCapture(rank.handle(), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    exchange.once()
    graph = cuda(driver.cuStreamEndCapture(rank.handle()))
    executable = cuda(driver.cuGraphInstantiate(graph, 0))
    took, wrong, each = 0.0, 0, max(replays // parts, 1)
    for part in range(parts):
        rank.write(pattern(rank.rank, rank.peer, words, round_ + part), size)
        rank.meet()
        begun = now()
        for _ in range(each):
            cuda(driver.cuGraphLaunch(executable, rank.handle()))
        rank.wait()
        took += now() - begun
        wrong += wrong_words(rank, words, round_ + part)
        rank.meet()
    cuda(driver.cuGraphExecDestroy(executable))
    cuda(driver.cuGraphDestroy(graph))
    rank.row("put_signal_graph", size, each * parts, took, wrong)


def main() -> int:
    most = int(os.environ.get("PUT_MOST", 64 << 20))
    iterations = int(os.environ.get("PUT_ITERATIONS", "200"))
    replays = int(os.environ.get("PUT_REPLAYS", "1000"))
    cases = os.environ.get("PUT_CASES", "stream,graph").split(",")
    sizes = [size for size in SIZES if size <= most]
    rank = Rank(sizes[-1])
    if rank.rank == 0:
        print(HEADER, flush=True)
    round_ = 0
    if "stream" in cases:
        for size in sizes:
            round_ += 1
            times = iterations if size <= 64 << 10 else max(iterations // 10, 1)
            in_stream(rank, size, times, round_)
    if "graph" in cases:
        for size in [size for size in GRAPH_SIZES if size <= most]:
            round_ += 10
            in_graph(rank, size, replays, round_)
    return rank.close()


if __name__ == "__main__":
    sys.exit(main())
