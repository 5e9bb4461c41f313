"""Environments in which other programs use ginlab's NCCL plugin or software EFA devices."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Dict, List

from ginlab._program import Error, message, output, program

PLUGIN = "libnccl_ginlab.so"


def _checked(words: List[str]) -> str:
    stdout, stderr, code = output(words, timeout=60)
    if code != 0:
        raise Error(message(stderr, code), code)
    return stdout


def nccl_plugin_path() -> Path:
    """Returns the path of the plugin for NCCL's GIN and RMA (`NCCL_RMA_PLUGIN`, `NCCL_GIN_PLUGIN`).

    Raises:
        Error: the plugin is not next to the program.
    """
    path = Path(os.environ.get("GINLAB_NCCL_PLUGIN") or program().parent / PLUGIN)
    if not path.is_file():
        raise Error(f"no plugin {path}: it must be next to the program, or set GINLAB_NCCL_PLUGIN", 2)
    return path


def nccl_env(*options: str) -> Dict[str, str]:
    """Returns the variables with which NCCL uses ginlab's rails: those of `ginlab nccl --print-env`.

    Pass them to a new process: `LD_PRELOAD` has no effect on the calling one.

    Args:
        options: options of `ginlab nccl`, for example `"-p", "worst:seed=7", "--rails", "4"`.

    Raises:
        Error: an option is invalid, or the plugin is missing.
    """
    variables: Dict[str, str] = {}
    for word in shlex.split(_checked(["nccl", "--print-env", *options])):
        name, separator, value = word.partition("=")
        if separator:
            variables[name] = value
    return variables


def soft_efa_env(cards: str = "soft-efa:p5") -> Dict[str, str]:
    """Returns the variables with which a program that loads libfabric sees software EFA devices.

    Pass them to a new process: `LD_PRELOAD` has no effect on the calling one.

    Args:
        cards: the devices, as for `ginlab soft-efa -p`, for example `"soft-efa:p4d,cards=2,seed=7"`.

    Raises:
        Error: `cards` is invalid, or the library of the devices is missing.
    """
    found = _checked(["soft-efa", "-p", cards, "--", "/usr/bin/env", "-0"])
    pairs = (entry.partition("=") for entry in found.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs if os.environ.get(name) != value}
