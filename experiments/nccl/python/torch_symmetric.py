"""PyTorch's symmetric memory over NCCL's windows. PyTorch's version decides which calls it has.

    ginlab nccl --nccl NCCL/lib --np 2 -- python3 torch_symmetric.py

Every element is verified. Rank 0 prints one line of CSV for each case, and the one-sided calls that this PyTorch has.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

LENGTH = 1 << 18
CALLS = ("nccl_put", "nccl_get", "nccl_put_with_signal", "nccl_wait_for_signal")


def main() -> int:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    note = f"rank {rank}: PyTorch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
    print(note, file=sys.stderr, flush=True)
    dist.init_process_group("nccl", device_id=device)
    group = dist.group.WORLD.group_name
    names = [name for name in CALLS if hasattr(torch.ops.symm_mem, name)]
    if rank == 0:
        print(f"# one-sided calls of this PyTorch: {', '.join(names) or 'none'}", file=sys.stderr, flush=True)
    symmetric.set_backend("NCCL")
    memory = symmetric.empty(LENGTH * ranks, dtype=torch.float32, device=device)
    symmetric.rendezvous(memory, group=group)
    failed = 0

    def row(case: str, wrong: int) -> None:
        nonlocal failed
        failed += wrong != 0
        if rank == 0 or wrong:
            status = "ok" if wrong == 0 else f"rank {rank}: wrong words"
            print(f"{case},{ranks},{LENGTH * 4},1,,,{wrong},{status}", flush=True)

    mine = memory[rank * LENGTH : (rank + 1) * LENGTH]
    mine.copy_(torch.arange(LENGTH, device=device) % 251 + rank)
    dist.all_gather_into_tensor(memory, mine)
    torch.cuda.synchronize()
    expected = torch.cat([torch.arange(LENGTH, device=device) % 251 + other for other in range(ranks)]).float()
    row("torch_all_gather", int((memory != expected).sum()))
    memory.fill_(rank + 1)
    dist.all_reduce(memory)
    torch.cuda.synchronize()
    row("torch_all_reduce", int((memory != ranks * (ranks + 1) / 2).sum()))
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
