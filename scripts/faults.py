#!/usr/bin/env python3
"""Runs a command of ginlab, and injects a fault into the middle of it: a cell of scripts/tables/faults.toml, in namespaces of its own (scripts/cell.py).

    scripts/faults.py --deadline N --codes 'CODE...' [--inject HOW] [OPTIONS] -- GINLAB WORDS...

Prints the seconds from the fault to the exit of the last process, the command, its message, `ok` if it succeeded, and lines `wrong: REASON`. Exit codes:
that of the command, 77 if this machine cannot run the cell, 98 if the command did not end.
"""

import argparse
import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from cell import loopback
from processes import children, end, environment_of, exit_code, free_port, with_rank

# Time limit of a command in seconds, and the margin after a deadline.
LIMIT = 60
MARGIN = 2
ROWS = "--csv run.csv --json run.json --no-header".split()


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deadline", type=int, required=True, help="time limit of every wait of the command, in seconds")
    parser.add_argument("--codes", type=lambda text: [int(code) for code in text.split()], required=True, help="expected exit codes")
    parser.add_argument("--inject", help="kill, stop, SIGNAL, stdout, disk, garbage, token, clock, cut, back, memory, trap or full")
    parser.add_argument("--nic", default="", help="text of the command that injects the fault; a server runs without it")
    parser.add_argument("--rows", action="store_true", help="the rows of the command so far must be complete")
    parser.add_argument("--libfabric", metavar="DIR", help="directory of another libfabric and its dependencies")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


class Run:
    """The processes of a cell."""

    def __init__(self, options):
        self.place, self.texts, self.all = Path.cwd(), [], []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("GINLAB_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))}
        self.environment |= dict(TMPDIR="/tmp", GINLAB_TOKEN="secret", NO_COLOR="1")
        self.ginlab, *self.words = options.command
        self.served = self.words[0] == "serve"
        self.words += [] if self.served else ROWS
        # Ranks wait for each other for two deadlines and six seconds, because one of them may be in its own wait.
        self.ranks = 2 * options.deadline + 6
        # The command that the fault affects, a wait until it is running, and an event to report instead of the last message.
        self.line = self.event = None
        self.under_way = lambda: until(lambda: self.all[-1].poll() is not None or rows_so_far(self.place) >= 2, "the first row")

    def bound(self, options):
        """Returns the time limit from the fault to the end. A closed stdout is detected by the next row, a cut network when ranks next communicate."""
        # If the command injects the fault, all of it is timed: start, time until the fault, and the host's time limit for a kernel, which is four
        # deadlines if busy threads share cores.
        whole = 4 * options.deadline + MARGIN + 5
        bounds = {None: whole, "stdout": whole, "memory": whole, "full": whole, "stop": self.ranks + MARGIN, "cut": self.ranks + 3 * MARGIN,
                  "token": self.ranks + MARGIN}
        return bounds.get(options.inject, options.deadline + MARGIN)

    def start(self, words, environment=None, **how):
        text = tempfile.TemporaryFile("w+", dir=self.place)
        self.texts.append(text)
        process = subprocess.Popen(
            [self.ginlab, *words], cwd=self.place, env=self.environment | (environment or {}), stderr=text, stdin=subprocess.DEVNULL, text=True,
            start_new_session=True, **how)
        self.all.append(process)
        return process

    def said(self):
        lines = []
        for text in self.texts:
            text.seek(0)
            lines += [line.strip() for line in text if line.startswith("ginlab")]
        return lines

    def rank(self, number):
        """Returns the process of a rank. Rank 0 is the command's process, or a child if that process waits for all ranks."""
        ranks = []
        until(lambda: ranks.extend(with_rank(self.all[0].pid, number)) or ranks, f"rank {number}")
        return ranks[0]


def use_libfabric(theirs):
    """Overlays a directory of libraries on this machine's, only in this cell (unpacked by scripts/check-headers.sh)."""
    if not Path(theirs, "libfabric.so.1").exists():
        raise Skip("no target/libfabric2: run scripts/check-headers.sh once")
    place = f"/usr/lib/{Path(theirs).name}"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={theirs}:{place}", place], capture_output=True).returncode:
        raise Skip("cannot mount an overlay here")


class Skip(Exception):
    """This machine cannot run the cell."""


def until(done, what):
    """Waits until `done` returns true, for at most half a cell's time limit."""
    end = time.monotonic() + LIMIT / 2
    while not done():
        if time.monotonic() > end:
            raise Skip(f"the fault could not be injected in the middle: waited for {what}")
        time.sleep(0.01)


def main():
    options = parsed()
    run = Run(options)
    try:
        if options.libfabric:
            use_libfabric(options.libfabric)
        began, code = (served if run.served else job)(run, options)
    except Skip as reason:
        print(reason)
        return 77
    seconds = time.monotonic() - began
    # Without preceding words: a loader, a limit.
    started = run.all[0 if run.line is None else -1].args
    said = run.said()
    message = run.event or (said[-1][:500] if said else "")
    for process in run.all:
        if process.poll() is None:
            end(process)
    wrong = []
    if code == "hang":
        wrong.append(f"did not end within {LIMIT} s")
    elif not isinstance(code, int):
        wrong.append(f"exit code {code}")
    if code != 0 and code != 141 and not message:
        wrong.append("no message")
    if code not in ("hang", 0) and seconds > (bound := run.bound(options)):
        wrong.append(f"took longer than {bound} s")
    if options.rows:
        wrong += broken_rows(run.place)
    print(f"seconds: {seconds:.2f}", f"ran: ginlab {' '.join(started[started.index(run.ginlab) + 1:])}".replace(str(run.place), "."), f"message: {message}", sep="\n")
    print(*["ok"] * (code == 0 and not run.event), *(f"wrong: {reason}" for reason in wrong), sep="\n")
    return code if isinstance(code, int) else 98


def ended(process, limit=LIMIT):
    return exit_code(process, limit, "hang")


def broken_rows(place):
    """Returns the errors in the rows of a failed run: each must be complete, and the JSON document marked as incomplete."""
    try:
        text = (place / "run.csv").read_text()
    except OSError:
        return ["no CSV"]
    rows = list(csv.reader(text.splitlines()))
    if not text.endswith("\n") or len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return ["incomplete row in the CSV"]
    try:
        document = json.loads((place / "run.json").read_text())
    except (OSError, ValueError):
        return ["no JSON document"]
    return [] if document.get("complete") is False else ["the JSON document is marked as complete"]


def rows_so_far(place):
    try:
        return (Path(place) / "run.csv").read_text().count("\n")
    except OSError:
        return 0


def job(run, options):
    """Runs ranks on this machine. Returns the time of the fault and the exit code."""
    words, inject = run.line or run.words, options.inject
    begin = time.monotonic()
    if inject is None:
        # Long enough for the fault, and short if it has no effect.
        process = run.start(words if run.line else shorter(words, {"-r": "1"}), stdout=subprocess.DEVNULL)
        return begin, ended(process)
    if inject == "token":
        # Ranks of one job with different tokens.
        words = drop_option(words, "--np")
        port = free_port()
        place = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        first = run.start(words, place | dict(RANK="0"), stdout=subprocess.DEVNULL)
        second = run.start(words, place | dict(RANK="1", GINLAB_TOKEN="another"), stdout=subprocess.DEVNULL)
        code = ended(second)
        first_code = ended(first)
        return begin, code if first_code != 0 else first_code
    if inject == "clock":
        short = words if run.line else shorter(words)
        double = clock_double(run.place)
        process = run.start(short, dict(LD_PRELOAD=double), stdout=subprocess.DEVNULL)
        return begin, ended(process)
    if inject == "garbage":
        # Sends to every port on which the run listens, while it runs.
        process = run.start(words if run.line else shorter(words), stdout=subprocess.DEVNULL)
        while process.poll() is None and time.monotonic() < begin + LIMIT:
            for port in set().union(*(listening(process.pid) for process in run.all)):
                talk_nonsense(port)
            time.sleep(0.05)
        return begin, ended(process)
    if inject == "disk":
        small = run.place / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], check=True)
        words = [word.replace("run.csv", "small/run.csv").replace("run.json", "small/run.json") for word in words]
        (small / "fill").write_bytes(b"x" * 12000)
        process = run.start(words, stdout=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or rows_so_far(small) >= 1, "a row")
        return time.monotonic(), ended(process)
    if inject == "memory":
        # A limit of the address space, equivalent to a cgroup's limit without overcommit. Programs that fit succeed.
        words = run.line or shorter(words)
        code = 0
        for limit in (250, 450, 600):
            if code in (0, *options.codes):
                begin = time.monotonic()
                code = ended(run.start(words, stdout=subprocess.DEVNULL, preexec_fn=partial(limit_memory, limit)))
        return begin, code
    if inject in ("trap", "full"):
        neighbour = neighbour_on_gpu(run.place)
    if inject == "full":
        with subprocess.Popen([neighbour, "fill"], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as full:
            full.stdout.readline()
            begin = time.monotonic()
            code = ended(run.start(words, stdout=subprocess.DEVNULL))
            full.stdin.close()
        return begin, code
    out = subprocess.PIPE if inject == "stdout" else subprocess.DEVNULL
    process = run.start(words, stdout=out)
    if inject == "stdout":
        # A peer of a server writes only one row, at its end.
        for _ in range(4 if run.line is None else 0):
            process.stdout.readline()
        process.stdout.close()
        return time.monotonic(), ended(process)
    run.under_way()
    if process.poll() is not None:
        raise Skip(f"ended before the fault, with code {process.poll()}: {run.said()[-1:]}")
    at = time.monotonic()
    if inject in ("kill", "stop"):
        os.kill(run.rank(1), signal.SIGKILL if inject == "kill" else signal.SIGSTOP)
    elif inject == "cut":
        loopback(False)
    elif inject == "back":
        loopback(False)
        time.sleep(1)
        loopback(True)
        # The run continues: two more rows, or its end.
        rows = rows_so_far(run.place) + 2
        end = at + LIMIT / 2
        while process.poll() is None and time.monotonic() < end and rows_so_far(run.place) < rows:
            time.sleep(0.01)
        if process.poll() is None:
            went_on = rows_so_far(run.place) >= rows
            process.send_signal(signal.SIGINT)
            return at, 0 if ended(process) == 130 and went_on else "hang"
    elif inject == "trap":
        # Uses the same MPS server, which terminates all its clients if a kernel of one of them traps.
        served_by = dict(word.decode().split("=", 1) for word in environment_of(run.rank(1)) if word.startswith(b"CUDA_"))
        subprocess.run([neighbour, "trap"], env=os.environ | served_by, timeout=LIMIT / 2, capture_output=True)
    else:
        os.kill(process.pid, getattr(signal, inject))
    return at, ended(process)


def limit_memory(mebibytes):
    """Limits the address space of the process to be started."""
    resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


def drop_option(words, name):
    at = words.index(name)
    return words[:at] + words[at + 2:]


def shorter(words, values={"-r": "1", "-n": "20"}):
    """Returns the options of a short version of the run: the first size and shape, and these values."""
    words = list(words)
    for option, value in (("-e", None), *values.items()):
        if option in words:
            at = words.index(option) + 1
            words[at] = value if value else words[words.index("-b") + 1]
    for option in ("--nx", "--unit", "--count", "--grid"):
        if option in words:
            at = words.index(option) + 1
            words[at] = words[at].split(",")[0]
    return words


def served(run, options):
    """Runs a server and a writing peer. The fault affects the peer."""
    inject = options.inject
    leaves = inject in ("kill", "stop")
    visits = "2" if leaves else "1"
    # The peer's options name only software NICs; other networks are chosen by the server.
    mine = run.words[1:] if "soft" in " ".join(run.words) else run.words[3:]
    well = [word.replace(options.nic, "") for word in run.words[1:]]
    server = run.start(["serve", "--listen", "127.0.0.1:0", "--peers", "2", "--visits", visits, "--bytes", "64K", *well], stdout=subprocess.PIPE)
    events = Events(server)
    address = events.until(r"(127\.0\.0\.1:\d+)", "its address").group(1)
    count = {"disk": "20000", "stdout": "20000", "back": "20000", None: "200", "clock": "200", "garbage": "2000", "token": "200", "memory": "200"}
    run.line = ["join", address, "-b", "4K", "-n", count.get(inject, "2000000"), *ROWS, *mine]
    run.under_way = lambda: events.until("writing", "the first write")
    if leaves:
        peer = run.start(run.line, stdout=subprocess.DEVNULL)
        run.under_way()
        begin = time.monotonic()
        os.kill(peer.pid, signal.SIGKILL if inject == "kill" else signal.SIGSTOP)
        # The server continues: it reports that the peer has died, and serves the next one.
        run.event = events.until(r"^died.*", "the end of the peer").group(0)
        took = time.monotonic() - begin
        os.killpg(peer.pid, signal.SIGKILL)
        again = ended(run.start(["join", address, "-b", "4K", "-n", "20", *mine], stdout=subprocess.DEVNULL))
        server_code = ended(server)
        return time.monotonic() - took, server_code if again == 0 else f"{server_code}, the next peer {again}"
    if inject == "token":
        begin = time.monotonic()
        code = ended(run.start(run.line, dict(GINLAB_TOKEN="another"), stdout=subprocess.DEVNULL))
    else:
        begin, code = job(run, options)
    ending = time.monotonic() - begin
    if ended(server, run.ranks) == "hang":
        # The server waits for a peer that did not join.
        server.send_signal(signal.SIGINT)
        if ended(server) == "hang":
            code = "hang"
    return time.monotonic() - ending, code


class Events:
    """Lines of a server's stdout."""

    def __init__(self, server):
        self.lines, self.server = [], server
        threading.Thread(target=lambda: [self.lines.append(line) for line in server.stdout], daemon=True).start()

    def until(self, pattern, what):
        """Waits for the first line that matches `pattern`. Returns the match."""
        found = lambda: next((match for line in list(self.lines) if (match := re.search(pattern, line))), None)
        until(lambda: found() or self.server.poll() is not None, f"{what}, of the server")
        if found() is None:
            raise Skip(f"the server exited before {what}")
        return found()


def listening(parent):
    """Returns the ports on which a process or its children listen."""
    ports, owned = set(), set()
    for pid in [parent, *children(parent)]:
        try:
            owned |= {os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()}
        except OSError:
            pass
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in owned:
                    ports.add(int(words[1].rsplit(":", 1)[1], 16))
        except OSError:
            pass
    return ports


def talk_nonsense(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.2) as peer:
            peer.sendall(random.Random(port).randbytes(4096))
    except OSError:
        pass


def neighbour_on_gpu(place):
    """Compiles another program for the same GPU: it fills the memory until its stdin is closed, or runs a kernel that traps."""
    source, program = place / "neighbour.cu", place / "neighbour"
    source.write_text("""#include <cstdio>
#include <cstring>
__global__ void trap() { asm volatile("trap;"); }
int main(int, char **words) {
    if (!strcmp(words[1], "trap")) { trap<<<1, 1>>>(); return cudaDeviceSynchronize() == cudaSuccess; }
    // Leaves memory for a context, but not for a run.
    size_t free = 0, all = 0;
    cudaMemGetInfo(&free, &all);
    for (size_t step = 1 << 30; step >= 1 << 20; ) { void *p; if (cudaMalloc(&p, step) != cudaSuccess) { cudaGetLastError(); step /= 2; } }
    puts("full"); fflush(stdout); getchar();
}
""")
    if not Path("/dev/nvidiactl").exists():
        raise Skip("no GPU on this machine")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        subprocess.run([nvcc, "-o", program, source], check=True, capture_output=True, timeout=LIMIT)
    except (OSError, subprocess.SubprocessError):
        raise Skip("no nvcc for a second program on the GPU") from None
    return program


def clock_double(place):
    """Compiles a library whose wall clock jumps by an hour back and forth at each read."""
    source, library = place / "clock.c", place / "clock.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *t) { static int n; int r = syscall(SYS_clock_gettime, id, t);\n"
        "  if (!r && id == CLOCK_REALTIME) t->tv_sec += (__atomic_fetch_add(&n, 1, __ATOMIC_RELAXED) & 1) ? 3600 : -3600; return r; }\n")
    if subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], capture_output=True).returncode:
        raise Skip("no C compiler for the jumping clock")
    return str(library)


if __name__ == "__main__":
    sys.exit(main())
