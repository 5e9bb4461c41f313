#!/usr/bin/env python3
"""Runs a command in namespaces that unshare has made, for rows of scripts/matrix.py with `cell`: its own /tmp, /dev/shm, network and processes.

Prints what the command has left: processes, and files in /tmp and /dev/shm. Exit codes: those of the command.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

# <linux/sockios.h>, <linux/if.h>
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def loopback(up):
    """Sets the loopback interface up or down, like `ip link set lo`, without `ip`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def listing():
    """Lists possible leftovers: processes and files."""
    found = {str(path) for point in ("/dev/shm", "/tmp") for path in Path(point).rglob("*") if not path.is_dir() or not any(path.iterdir())}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name not in (str(os.getpid()), "1"):
            try:
                name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if name:
                found.add(f"process {name[:60]}")
    return found


def main():
    for point in ("/dev/shm", "/tmp"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", point], check=True)
    loopback(True)
    before = listing()
    code = subprocess.run(sys.argv[1:]).returncode
    # Processes that are exiting get a second.
    end = time.monotonic() + 1
    while (left := sorted(listing() - before)) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        print(f"leftovers: {'; '.join(left)[:200]}", flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
