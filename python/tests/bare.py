"""Uses an installed package on a machine that has only Python. Run by scripts/wheel-check.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ginlab


def failure(words: list[str]) -> str:
    """Returns the message of a run that must fail."""
    try:
        ginlab.run(words)
    except ginlab.Error as error:
        return f"{error.exit_code}: {error}"
    sys.exit(f"{words} did not fail")


def main() -> None:
    print("ginlab", ginlab.__version__, "at", ginlab.program())
    line = "shmem -d emulated --np 2 --path rails --cases message-ping-pong -b 64 -e 64 -n 20 -r 2".split()
    for provider in ["shared", "model:p5", "worst:seed=7"]:
        row = ginlab.run([*line, "-p", provider])[0]
        assert row["wrong_bytes"] == 0, row
        print(f"{row['case']} over {row['fabric']}: {row['time_us_p50']} us")
    # libfabric is absent here, which one line explains.
    text = failure(["proxy", "-p", "tcp", "-b", "64", "-e", "64"])
    print(text)
    assert "libfabric" in text, text
    assert ginlab.nccl_plugin_path().is_file()
    assert ginlab.nccl_env()["NCCL_RMA_PLUGIN"] == str(ginlab.nccl_plugin_path())
    # The plugin and the software devices load into another program.
    for variables in [ginlab.nccl_env(), ginlab.soft_efa_env("soft-efa:p5,cards=2")]:
        library = Path(variables["LD_PRELOAD"]).name
        child = ["/bin/cat", "/proc/self/maps"]
        maps = subprocess.run(child, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True)
        assert library in maps.stdout, maps.stdout
        print(library, "loaded")


if __name__ == "__main__":
    main()
