"""GIN from a kernel in Python: put, signal and wait by nccl4py's interface for the CuTe DSL, or by cute-comm's.

    pip install "nccl4py[cu13]"
    ginlab nccl --nccl NCCL/lib --np 2 -- python3 cute_gin.py [nccl4py|cute-comm]

Pairs of ranks put 8 B to 4 MiB to each other with a signal and wait for the peer's. Every word is verified. Rank 0
prints one line of CSV for each case. Variables: CUTE_ITERATIONS (default 200), CUTE_MOST (largest size in bytes,
default 4 MiB), CUTE_CUBIN (machine code that cute_kernel.py or cute_comm_kernel.py has written; then no CuTe DSL is
needed).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
from cuda.bindings import driver

from common import HEADER, Rank, cuda, nccl, now, pattern

SIZES = [8, 64, 4 << 10, 64 << 10, 1 << 20, 4 << 20]
THREADS = 32
UNTIMED = 10


class Compiled:
    """The kernel of nccl4py's interface, compiled and launched by the CuTe DSL."""

    def __init__(self, rank: Rank, dev_comm: nccl.DevCommResource) -> None:
        import cute_kernel

        self.rank, self.dev_comm = rank, dev_comm
        self.call = cute_kernel.compiled()
        self.stream = driver.CUstream(rank.handle())

    def launch(self, words: int, times: int, base: int) -> None:
        rank = self.rank
        self.call(self.dev_comm, rank.send_window, rank.receive_window, words, times, base, self.stream)


class Loaded:
    """Machine code that is launched by the driver."""

    def __init__(self, rank: Rank, dev_comm: nccl.DevCommResource, file: Path, by_value: bool) -> None:
        self.rank, self.dev_comm, self.by_value = rank, dev_comm, by_value
        self.copy = 0 if by_value else copy_to_gpu(rank, dev_comm)
        module = cuda(driver.cuModuleLoadData(file.read_bytes()))
        self.function = cuda(driver.cuModuleGetFunction(module, file.with_suffix(".name").read_bytes()))

    def launch(self, words: int, times: int, base: int) -> None:
        rank = self.rank
        windows = ctypes.c_uint64(rank.send_window.handle), ctypes.c_uint64(rank.receive_window.handle)
        counts = ctypes.c_int32(times), ctypes.c_int64(base)
        if self.by_value:
            # The driver reads the first parameter, the structure ncclDevComm, from nccl4py's copy.
            first = int(self.dev_comm.dev_comm.ptr)
            values = (*windows, ctypes.c_int32(words), *counts)
        else:
            pointer = ctypes.c_uint64(self.copy)
            first = ctypes.addressof(pointer)
            values = (*windows, ctypes.c_int32(rank.peer), ctypes.c_int64(words * 8), *counts)
        addresses = [first, *(ctypes.addressof(value) for value in values)]
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        cuda(driver.cuLaunchKernel(self.function, 1, 1, 1, THREADS, 1, 1, 0, rank.handle(), ctypes.addressof(table), 0))


def copy_to_gpu(rank: Rank, dev_comm: nccl.DevCommResource) -> int:
    """Copies the structure ncclDevComm to GPU memory, where cute-comm's functions read it. Returns its address."""
    size = rank.comm.properties.dev_comm_runtime_version_size or 512
    copy = cuda(driver.cuMemAlloc(size))
    cuda(driver.cuMemcpyHtoDAsync(copy, int(dev_comm.dev_comm.ptr), size, rank.handle()))
    rank.wait()
    return int(copy)


def main(interface: str) -> int:
    most = int(os.environ.get("CUTE_MOST", 4 << 20))
    iterations = int(os.environ.get("CUTE_ITERATIONS", "200"))
    sizes = [size for size in SIZES if size <= most]
    rank = Rank(sizes[-1])
    requirements = nccl.NCCLDevCommRequirements(
        gin_connection_type=nccl.NcclGinConnectionType.FULL, gin_signal_count=1, gin_context_count=1
    )
    dev_comm = rank.comm.create_dev_comm(requirements=requirements)
    cubin = os.environ.get("CUTE_CUBIN")
    kernel = Loaded(rank, dev_comm, Path(cubin), interface == "nccl4py") if cubin else Compiled(rank, dev_comm)
    if rank.rank == 0:
        print(HEADER, flush=True)
    base = 0
    for round_, size in enumerate(sizes):
        words, times = size // 8, iterations if size <= 64 << 10 else max(iterations // 10, 1)
        rank.write(pattern(rank.rank, rank.peer, words, round_), size)
        rank.meet()
        kernel.launch(words, UNTIMED, base)
        rank.wait()
        begun = now()
        kernel.launch(words, times, base + UNTIMED)
        rank.wait()
        took = now() - begun
        base += UNTIMED + times
        wrong = int(np.count_nonzero(rank.read(words) != pattern(rank.peer, rank.rank, words, round_)))
        rank.meet()
        rank.row(f"cute_put_{interface}", size, times, took, wrong)
    dev_comm.close()
    return rank.close()


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "nccl4py"
    if chosen not in ("nccl4py", "cute-comm"):
        sys.exit(f"invalid interface {chosen!r}: expected nccl4py or cute-comm")
    if chosen == "cute-comm" and "CUTE_CUBIN" not in os.environ:
        sys.exit("cute-comm requires CUTE_CUBIN: the file that cute_comm_kernel.py has written")
    sys.exit(main(chosen))
