"""Processes of a run: their environment, ranks and ports. Used by matrix.py, faults.py and mutations.py."""

import os
import signal
import socket
import subprocess
from pathlib import Path

# Runs a command in its own namespaces, and ends it if this program ends.
SPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child", "--mount-proc"]


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def children(parent):
    found = []
    for pid in processes():
        try:
            if int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(pid)
        except OSError:
            pass
    return sorted(found)


def with_rank(pid, number):
    """Returns the processes of a rank below `pid`. Processes inherit the variable of a rank, so the rank's own process is the last one."""
    found, look = [], [pid]
    while look:
        look += (below := children(look.pop(0)))
        found += below
    return [pid for pid in found if any(word.endswith(f"RANK={number}".encode()) for word in environment_of(pid))]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(process):
    """Ends all processes of a session, with SIGTERM first, so that they can clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def exit_code(process, limit, late="limit"):
    """Waits for a process. Returns its exit code as a shell does, or `late` after `limit` seconds."""
    try:
        code = process.wait(max(0.0, limit))
    except subprocess.TimeoutExpired:
        return late
    return code if code >= 0 else 128 - code
