"""Ranks, memory and verification that the scripts of this directory share. They need nccl4py and numpy, and no PyTorch.

Ranks are given by RANK, WORLD_SIZE and LOCAL_RANK, as `ginlab nccl --np` sets them. They connect by NCCL_COMM_ID, or by
MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from cuda.bindings import driver
from cuda.core import Device

# nccl4py imports PyTorch and CuPy, if they are installed, to recognize their arrays. These scripts have none, and the
# imports take seconds. The scripts import nccl from here, so that this comes first.
if not os.environ.get("KEEP_TORCH"):
    sys.modules.update(torch=None, cupy=None)

import nccl.core as nccl  # noqa: E402

HEADER = "case,ranks,bytes,iterations,time_us,gbytes_s,wrong,status"


def cuda(result):
    """Returns the values of a driver call, and raises an error if it failed."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA: {code.name}")
    return values[0] if values else None


class Array:
    """A range of GPU memory as an array, for nccl4py's buffer arguments. Elements are 64-bit words by default."""

    def __init__(self, pointer: int, length: int, element: str = "<u8") -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": element,
            "data": (pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }


def pattern(source: int, target: int, words: int, round_: int) -> np.ndarray:
    """Returns a payload. Its words are different for each pair of ranks, index and round."""
    seed = np.uint64((source << 40) ^ (target << 48) ^ (round_ << 20) ^ 0x9E3779B97F4A7C15)
    index = np.arange(words, dtype=np.uint64)
    return (index * np.uint64(0xD1342543DE82EF95)) ^ seed ^ (index >> np.uint64(7))


class Rank:
    """One rank: its communicator, a stream, and two windows of the same size."""

    def __init__(self, window_bytes: int, config: nccl.NCCLConfig | None = None) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if self.ranks < 2 or self.ranks % 2:
            sys.exit("an even number of ranks is required: ginlab nccl --np 2 -- python3 ...")
        if "NCCL_COMM_ID" not in os.environ:
            port = int(os.environ.get("MASTER_PORT", "29500")) + 1
            os.environ["NCCL_COMM_ID"] = f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{port}"
        self.peer = self.rank ^ 1
        cuda(driver.cuInit(0))
        gpus = cuda(driver.cuDeviceGetCount())
        self.device = Device(int(os.environ.get("LOCAL_RANK", self.rank)) % gpus)
        # Leaves the cores to the threads that move bytes: a synchronizing thread sleeps.
        cuda(driver.cuDevicePrimaryCtxSetFlags(self.device.device_id, driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC))
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.comm = nccl.Communicator.init(
            nranks=self.ranks, rank=self.rank, unique_id=nccl.get_unique_id(), config=config
        )
        version = nccl.get_version()
        print(
            f"rank {self.rank}: nccl4py {version.nccl4py}, NCCL {version.libnccl}, {properties(self.comm)}",
            file=sys.stderr,
            flush=True,
        )
        # ncclPutSignal refuses memory that ncclMemAlloc has not allocated, and windows that are not symmetric.
        self.bytes = window_bytes
        self.send_memory = nccl.mem_alloc(window_bytes)
        self.receive_memory = nccl.mem_alloc(window_bytes)
        self.send = int(self.send_memory.handle)
        self.receive = int(self.receive_memory.handle)
        symmetric = nccl.WindowFlag.COLL_SYMMETRIC
        self.send_window = self.comm.register_window(Array(self.send, window_bytes // 8), symmetric)
        self.receive_window = self.comm.register_window(Array(self.receive, window_bytes // 8), symmetric)
        if not (self.send_window.is_valid and self.receive_window.is_valid):
            sys.exit(f"rank {self.rank}: NCCL has returned no window")
        self.failed = 0

    def handle(self) -> int:
        """Returns the CUDA stream."""
        return int(self.stream.handle)

    def write(self, words: np.ndarray, clear: int) -> None:
        """Writes the words to the source window, and another value to `clear` bytes of the target window."""
        words = np.ascontiguousarray(words)
        cuda(driver.cuMemcpyHtoDAsync(self.send, words.ctypes.data, words.nbytes, self.handle()))
        cuda(driver.cuMemsetD8Async(self.receive, 0xEE, clear, self.handle()))
        self.wait()

    def read(self, words: int, offset: int = 0) -> np.ndarray:
        """Returns words of the target window."""
        found = np.empty(words, dtype=np.uint64)
        cuda(driver.cuMemcpyDtoHAsync(found.ctypes.data, self.receive + offset, found.nbytes, self.handle()))
        self.wait()
        return found

    def wait(self) -> None:
        """Waits for the stream."""
        cuda(driver.cuStreamSynchronize(self.handle()))

    def meet(self) -> None:
        """Waits until the peer has also called this: its target may then be overwritten."""
        self.comm.signal(self.peer, stream=self.stream)
        self.comm.wait_signal(nccl.WaitSignalDesc(peer=self.peer), stream=self.stream)
        self.wait()

    def row(self, case: str, size: int, iterations: int, seconds: float, wrong: int) -> None:
        """Prints a row on rank 0, and every row with wrong words."""
        self.failed += wrong != 0
        if self.rank == 0 or wrong:
            each = seconds / iterations
            status = "ok" if wrong == 0 else f"rank {self.rank}: wrong words"
            print(
                f"{case},{self.ranks},{size},{iterations},{each * 1e6:.2f},{size / each / 1e9:.3f},{wrong},{status}",
                flush=True,
            )

    def close(self) -> int:
        """Closes windows and communicator. Returns the exit code of the script."""
        self.send_window.close()
        self.receive_window.close()
        self.comm.destroy()
        nccl.mem_free(self.send_memory)
        nccl.mem_free(self.receive_memory)
        return 1 if self.failed else 0


def properties(comm: nccl.Communicator) -> str:
    """Returns the properties of a communicator that GIN and the host's one-sided calls depend on."""
    try:
        found = comm.properties
    except Exception as error:  # noqa: BLE001  # only for the log
        return f"no properties: {error}"
    names = ("gin_type", "railed_gin_type", "host_rma_support", "device_api_support", "n_lsa_teams")
    return ", ".join(f"{name} {getattr(found, name, 'unknown')}" for name in names)


def now() -> float:
    """Returns the time in seconds."""
    return time.perf_counter()
