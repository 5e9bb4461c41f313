"""A kernel of the CuTe DSL that uses NCCL's GIN by cute-comm. It is a module of its own because it imports the DSL.

    pip install "nccl4py[cu13]" cute-comm
    CUTE_DSL_ARCH=sm_90a python3 cute_comm_kernel.py FILE      writes the machine code, without a GPU
    CUTE_CUBIN=FILE ginlab nccl --nccl NCCL/lib --np 2 -- python3 cute_gin.py cute-comm

The name of the kernel is written to FILE with the suffix .name. cute-comm's own functions for the host are not used:
`create_dev_comm` of 0.1.0 passes eight bytes to NCCL, which writes the whole structure ncclDevComm there.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The DSL reads these variables when it is imported.
DUMPED = tempfile.TemporaryDirectory()
os.environ.update(CUTE_DSL_KEEP="ptx", CUTE_DSL_DUMP_DIR=DUMPED.name)

import cute_comm.nccl as cn
import cutlass
import cutlass.cute as cute
from cute_comm.nccl._bridge import _nvcc_path
from cute_comm.nccl._bridge_src import BRIDGE_SRC
from cute_comm.nccl._lib import get_nccl_include
from cutlass.cute.runtime import make_fake_stream

THREADS = 32
SIGNAL = 0


@cute.kernel
def exchange(
    comm: cutlass.Uint64,
    send: cutlass.Uint64,
    receive: cutlass.Uint64,
    peer: cutlass.Int32,
    size: cutlass.Int64,
    times: cutlass.Int32,
    base: cutlass.Int64,
):
    """Puts `size` bytes to the peer `times` times, and waits for the peer's signal each time."""
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        for i in range(times):
            zero = cutlass.Uint64(0)
            cn.gin_put_siginc(
                comm, cutlass.Int32(0), peer, receive, zero, send, zero, cutlass.Uint64(size), cutlass.Uint32(SIGNAL)
            )
            cn.gin_wait_signal(comm, cutlass.Int32(0), cutlass.Uint32(SIGNAL), cutlass.Uint64(base + i + 1))


@cute.jit
def run(
    comm: cutlass.Uint64,
    send: cutlass.Uint64,
    receive: cutlass.Uint64,
    peer: cutlass.Int32,
    size: cutlass.Int64,
    times: cutlass.Int32,
    base: cutlass.Int64,
    stream,
):
    """Launches the kernel as one block."""
    exchange(comm, send, receive, peer, size, times, base).launch(
        grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream
    )


def ptx() -> str:
    """Returns the kernel's PTX. The CuTe DSL writes it, and then fails: it does not link PTX."""
    pointers = [cutlass.Uint64(0)] * 3
    counts = cutlass.Int32(0), cutlass.Int64(0), cutlass.Int32(0), cutlass.Int64(0)
    try:
        cute.compile(run, *pointers, *counts, make_fake_stream())
    except Exception as error:  # noqa: BLE001  # without PTX, the next line fails
        print(f"# {str(error).splitlines()[0]}", file=sys.stderr)
    (file,) = Path(DUMPED.name).glob("*.ptx")
    return file.read_text()


def compiled(arch: str) -> tuple[bytes, str]:
    """Returns the kernel's machine code and name: its PTX linked with cute-comm's functions."""
    kernel = ptx()
    nvcc = Path(_nvcc_path())
    with tempfile.TemporaryDirectory() as folder:
        kernel_file, bridge, bridge_ptx = (Path(folder) / name for name in ("kernel.ptx", "bridge.cu", "bridge.ptx"))
        kernel_file.write_text(kernel)
        bridge.write_text(BRIDGE_SRC)
        # Without -rdc, nvcc removes functions that no kernel calls.
        options = ["-ptx", "-rdc=true", "-std=c++17", f"-I{get_nccl_include()}"]
        subprocess.run([nvcc, *options, f"-arch={arch}", bridge, "-o", bridge_ptx], check=True)
        objects = []
        for file in (kernel_file, bridge_ptx):
            objects.append(file.with_suffix(".o"))
            subprocess.run([nvcc.parent / "ptxas", f"-arch={arch}", "-c", file, "-o", objects[-1]], check=True)
        cubin = Path(folder) / "kernel.cubin"
        subprocess.run([nvcc.parent / "nvlink", f"-arch={arch}", *objects, "-o", cubin], check=True)
        return cubin.read_bytes(), kernel.split(".entry ")[1].split("(")[0]


def main(file: Path) -> int:
    if "CUTE_DSL_ARCH" not in os.environ:
        sys.exit("CUTE_DSL_ARCH is not set: give the architecture, such as sm_90a")
    code, name = compiled(os.environ["CUTE_DSL_ARCH"])
    file.write_bytes(code)
    file.with_suffix(".name").write_text(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
