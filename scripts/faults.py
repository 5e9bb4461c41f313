#!/usr/bin/env python3
"""Runs every experiment with every fault of scripts/tables/faults.toml, and writes one table.

    scripts/faults.py [GINLAB] [DIR]             DIR gets faults.csv [default: new, under /tmp]
    scripts/faults.py --page DIR [--check]       generate docs/faults.md from DIR/faults.csv.xz (DIR in data/), or compare
    scripts/faults.py --merge DIR CSV...         merge tables of parts or machines into DIR/faults.csv

    JOBS      cells at the same time   [default: one per four cores; with more, deadlines pass for lack of CPU time]
    DEADLINE  time limit of every wait of the programs, in seconds; more on a shared machine   [default: 3]
    ONLY      regular expression of cells, `program / fabric / fault`, such as 'shmem / (tcp|worst) / '   [default: all]

A cell is one program over one fabric with one fault. It runs in its own namespaces (processes, /dev/shm, /tmp, IPC), which needs root, so that all
leftovers belong to it. A row contains the permitted and the actual exit code, seconds from the fault to the exit of the last process, the message,
leftovers (processes, files), and why a cell does not apply or was skipped. A cell fails if its exit code is another one, its message does not state the
cause, it takes longer than its deadline plus two seconds, a row of its CSV is incomplete, or something is left. Failed cells are run once more without
others. Takes an hour on two cores. Cells of `same GPU` need a GPU and nvcc; run them with JOBS=1. Exit codes: 0 ok, 1 a cell failed, 2 usage.
"""

import concurrent.futures
import csv
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from processes import children, end, environment_of, exit_code, free_port, with_rank
from rows import ROOT as REPO, load

# Time limit of every wait of a cell's programs (-t), and the margin, in seconds.
DEADLINE = int(os.environ.get("DEADLINE", "3"))
MARGIN = 2
# Ranks wait for each other for two deadlines and six seconds, because one of them may be in its own wait.
RANKS = 2 * DEADLINE + 6
# For a run whose own options inject the fault: start, time until the fault, and the host's time limit for a kernel, which is four deadlines if
# busy threads share cores.
WHOLE = 4 * DEADLINE + MARGIN + 5
# Time limit of a cell.
LIMIT = 60
# A cell is terminated with this program.
SPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child", "--mount-proc"]
# <linux/sockios.h>, <linux/if.h>
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

TABLE = load("faults")
BY_GIN = TABLE["by_gin"]
WITH_PROXY = ["proxy quiet", "proxy nbi", *BY_GIN]
SERVED = ["serve + join", "echo"]
ALONE = ["ipc", "queue"]
CARDS_IN_SOFTWARE = ["soft-efa 1.17", "soft-efa 2.1", "direct"]
FABRICS = TABLE["fabrics"]
PROGRAMS = {name: f"{line} {TABLE['rows']}" for name, line in TABLE["programs"].items()}
FAULTS = {name.replace("{status}", str(status)): {**fault, "status": status} for name, fault in TABLE["faults"].items()
          for status in (TABLE["statuses"] if "{status}" in name else [0])}


class Expect:
    """Expected result of a cell: one of these exit codes, and a message that matches `words`."""

    def __init__(self, codes, words="", adds="", inject=None, rows=False, cards="fast"):
        self.codes, self.words, self.adds, self.inject, self.rows, self.cards = codes, words, adds, inject, rows, cards


def of_fault(fault, program, fabric):
    """Returns the Expect of a fault, or the reason why it does not apply."""
    kind, inject, codes = fault["kind"], fault["inject"].replace("{status}", str(fault["status"])), tuple(fault["codes"])
    with_words = lambda text: text.replace("{gone}", TABLE["gone"]).replace("{stall}", TABLE["stall"])
    words = with_words(fault.get("words", ""))
    served = program == "serve + join"
    if kind == "soft":
        if fabric not in CARDS_IN_SOFTWARE:
            return "only software NICs can inject this fault"
        if program in ALONE:
            return "no NIC is used"
        also = (0,) if fault["status"] in TABLE["tried_again"] and fabric != "direct" else ()
        old = tuple(fault.get("old", ())) if fabric == "soft-efa 1.17" else ()
        # Both sides have the same deadline: the later one may detect that the other has exited.
        late = program in SERVED and 124 in codes
        return Expect((*codes, *also, *old, *((1,) if late else ())), f"{words}|{TABLE['gone']}" if late else words, adds=f",{inject}", cards=fault.get("cards", "fast"))
    if kind == "proxy":
        if program not in WITH_PROXY:
            return "no proxy runs"
        if fabric in ("memory", "direct") or (fabric == "same GPU" and program in BY_GIN):
            return "its puts do not use a proxy"
        # In the proxies of each rank, after 60 commands.
        return Expect(codes, words, adds=f" --fault {inject}=60")
    if kind == "gpu":
        if fabric != "same GPU":
            return "no GPU is used"
        if inject == "trap" and not program.startswith(tuple(BY_GIN)):
            return "only one process uses the GPU, with its own context"
    elif not fault.get("alone") and program in ("queue", "echo"):
        return "one process" if program == "queue" else "server and client are tasks of one process"
    if served and "served" in fault:
        return Expect(tuple(fault["served"][0]), with_words(fault["served"][1]), inject=inject)
    return Expect(codes, words, inject=inject, rows=fault.get("rows", False) and not served)


def expectation(program, fabric, fault):
    """Returns the Expect of a cell, or the reason why it does not apply."""
    if fabric == "same GPU" and program not in (*WITH_PROXY, "queue"):
        return "it runs no kernel" if program != "ipc" else "it writes between two GPUs"
    if fabric == "memory" and program not in (*BY_GIN, *ALONE):
        return "its puts do not use mapped memory"
    if fabric not in ("memory", "same GPU") and program in ALONE:
        return "no network is used"
    if fabric == "direct" and program not in BY_GIN:
        return "its kernels do not drive a NIC"
    return of_fault(FAULTS[fault], program, fabric)


def main():
    """Runs all cells whose name matches ONLY. Returns the exit code."""
    ginlab = Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/ginlab").resolve()
    if not os.access(ginlab, os.X_OK):
        sys.exit(print(f"faults.py: no program {ginlab}: run make build, or name another", file=sys.stderr) or 2)
    if subprocess.run([*SPACES[:3], "unshare", "--mount", "--pid", "--ipc", "--net", "--fork", "true"], capture_output=True).returncode:
        sys.exit(print("faults.py: not run: cannot create namespaces here (needs root)", file=sys.stderr) or 2)
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("OUT") or tempfile.mkdtemp(prefix="ginlab-faults."))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"faults.py: results go to {folder}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Outside /tmp and /dev/shm, because each cell has its own.
    with tempfile.TemporaryDirectory(prefix="ginlab-faults.", dir="/var/tmp") as work:
        scripts = Path(work) / "scripts"
        for name in ("faults.py", "rows.py", "processes.py", "tables/faults.toml"):
            (scripts / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / "scripts" / name, scripts / name)
        shutil.copy(ginlab, work)
        # The software NICs are in the directory of the program; cargo builds them in its directory deps.
        for library in (ginlab.with_name("libsoft_efa.so"), ginlab.parent / "deps/libsoft_efa.so"):
            if library.exists():
                shutil.copy(library, work)
        os.environ.setdefault("GINLAB_REPOSITORY", str(REPO))
        only = re.compile(os.environ.get("ONLY") or ".")
        return run_cells(str(Path(work) / ginlab.name), Path(work), folder, int(os.environ.get("JOBS") or (os.cpu_count() + 3) // 4), only)


def run_cells(ginlab, work, folder, jobs, only):
    commands = subprocess.run([ginlab, "--help"], capture_output=True, text=True).stdout
    cells, rows = [], []
    for program in PROGRAMS:
        for fabric in FABRICS:
            for fault in FAULTS:
                name = f"{program} / {fabric} / {fault}"
                if not only.search(name):
                    continue
                expected = expectation(program, fabric, fault)
                word = program.split()[0]
                if isinstance(expected, Expect) and not re.search(rf"^\s+{word}\b", commands, re.M):
                    expected = f"this build has no {word}"
                if isinstance(expected, str):
                    rows.append(dict(program=program, fabric=fabric, fault=fault, status=f"not applicable: {expected}"))
                else:
                    cells.append((program, fabric, fault))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, row in enumerate(pool.map(lambda cell: run_cell(ginlab, work, *cell), cells)):
            rows.append(row)
            write(folder, rows)
            if row["status"] != "ok":
                print(f"{row['program']} / {row['fabric']} / {row['fault']}: {row['status']}", file=sys.stderr)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(cells)}", end="", file=sys.stderr)
    # On a busy machine deadlines pass. A cell that failed, or ended before its fault, is run again without other cells; a second failure is a
    # defect.
    for at, row in enumerate(rows):
        if row["status"].startswith(("failed", "skipped: ended before", "skipped: the fault could not be injected")):
            rows[at] = run_cell(ginlab, work, row["program"], row["fabric"], row["fault"]) | dict(first_try=row["status"])
            write(folder, rows)
            if rows[at]["status"] != "ok":
                print(f"alone: {row['program']} / {row['fabric']} / {row['fault']}: {rows[at]['status']}", file=sys.stderr)
    write(folder, rows)
    count = lambda begin: sum(row["status"].startswith(begin) for row in rows)
    fell = count("failed")
    again = sum(row["status"] == "ok" and "first_try" in row for row in rows)
    print(f"{len(cells)} cells: {count('ok')} ok ({again} of them in the second run), {fell} failed, {count('skipped')} skipped; "
          f"{count('not applicable')} do not apply")
    return 1 if fell else 0


def merge(folder, tables):
    """Merges several tables. A later one replaces rows of an earlier one; cells in none are marked as not run."""
    rows = {}
    for program in PROGRAMS:
        for fabric in FABRICS:
            for fault in FAULTS:
                why = expectation(program, fabric, fault)
                status = f"not applicable: {why}" if isinstance(why, str) else "not run: lack of time"
                rows[program, fabric, fault] = dict(program=program, fabric=fabric, fault=fault, status=status)
    for table in tables:
        with open(table, newline="") as file:
            for row in csv.DictReader(file):
                cell = row["program"], row["fabric"], row["fault"]
                ran = not row["status"].startswith(("not", "skipped"))
                applies = cell in rows and not rows[cell]["status"].startswith("not applicable")
                if applies and (ran or rows[cell]["status"].startswith("not run")):
                    rows[cell] = {name: value for name, value in row.items() if value}
    write(folder, list(rows.values()))


def write(folder, rows):
    """Writes all rows so far, in the order of the table."""
    order = {name: at for at, name in enumerate([*PROGRAMS, *FABRICS, *FAULTS])}
    names = ["program", "fabric", "fault", "expected_codes", "code", "seconds", "said", "left", "status", "first_try", "cores", "command"]
    with open(folder / "faults.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (order[row["program"]], order[row["fabric"]], order[row["fault"]])))


def run_cell(ginlab, work, program, fabric, fault):
    """Runs a cell in its own namespaces. Returns its row."""
    row = dict(program=program, fabric=fabric, fault=fault)
    with tempfile.TemporaryDirectory(dir=work, prefix="cell-") as place:
        words = [sys.executable, str(work / "scripts/faults.py"), "--cell", ginlab, place, program, fabric, fault]
        try:
            done = subprocess.run(SPACES + words, capture_output=True, text=True, timeout=2 * LIMIT)
        except subprocess.TimeoutExpired:
            return row | dict(status=f"failed: the cell did not end within {2 * LIMIT} s")
        try:
            return row | json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            return row | dict(status=f"failed: the cell itself: {done.stderr[-300:]}".replace("\n", " "))


class Run:
    """The processes of a cell."""

    def __init__(self, ginlab, place, program, fabric, expected):
        self.place, self.texts, self.all = Path(place), [], []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("GINLAB_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))}
        self.environment |= dict(TMPDIR="/tmp", GINLAB_TOKEN="secret", NO_COLOR="1")
        self.ginlab = [ginlab]
        if fabric == "soft-efa 2.1":
            use_debian_13()
        fabric_words = FABRICS[fabric]
        extra = expected.adds
        if extra.startswith(","):
            fabric_words, extra = fabric_words.replace(":fast", f":{expected.cards}") + extra, ""
        by_memory = "--path nvlink"
        paths = {"memory": by_memory, "same GPU": by_memory, "direct": "--path direct"}
        path = paths.get(fabric, "--path rails") if program in BY_GIN else ""
        if fabric == "same GPU":
            fabric_words = "-d gpu" + (" -p tcp" if program in ("proxy quiet", "proxy nbi") else "")
        self.on_gpu = fabric == "same GPU"
        if self.on_gpu:
            # All ranks use the first GPU.
            self.environment["CUDA_VISIBLE_DEVICES"] = "0"
        self.words = f"{fabric_words} {path} -t {DEADLINE}{extra}".split()
        # Options of a process without the fault.
        self.well = [word.replace(expected.adds, "") if expected.adds.startswith(",") else word for word in self.words]
        self.program = program
        # The command that the fault affects, a wait until it is running, and an event to report instead of the last message.
        self.line = self.event = None
        self.under_way = lambda: until(lambda: self.all[-1].poll() is not None or rows_so_far(self.place) >= 2, "the first row")

    def start(self, words, environment=None, **how):
        text = tempfile.TemporaryFile("w+", dir=self.place)
        self.texts.append(text)
        process = subprocess.Popen(
            self.ginlab + words, cwd=self.place, env=self.environment | (environment or {}), stderr=text, stdin=subprocess.DEVNULL, text=True,
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


def use_debian_13():
    """Overlays Debian 13's libfabric and its dependencies on this machine's libraries, only in this cell (unpacked by scripts/check-headers.sh)."""
    place = "usr/lib/x86_64-linux-gnu"
    theirs = Path(os.environ["GINLAB_REPOSITORY"]) / "target/libfabric2" / place
    if not (theirs / "libfabric.so.1").exists():
        raise Skip("no target/libfabric2: run scripts/check-headers.sh once")
    words = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={theirs}:/{place}", f"/{place}"]
    if subprocess.run(words, capture_output=True).returncode:
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


def cell(ginlab, place, program, fabric, fault):
    """Runs one cell inside its namespaces. Returns its row."""
    for point in ("/dev/shm", "/tmp"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", point], check=True)
    loopback(True)
    before = listing()
    expected = expectation(program, fabric, fault)
    row = dict(cores=os.cpu_count(), expected_codes="|".join(map(str, expected.codes)), code="", seconds="", said="", left="", command="")
    try:
        gpu_before = gpu_memory() if fabric == "same GPU" else 0
        run = Run(ginlab, place, program, fabric, expected)
        began, code = PROGRAM_OF.get(program, job)(run, expected)
    except Skip as reason:
        return row | dict(status=f"skipped: {reason}")
    # Without preceding words: a loader, a limit.
    started = [word.replace(str(place), ".") for word in run.all[0 if run.line is None else -1].args]
    row["command"] = " ".join(["ginlab", *started[started.index(ginlab) + 1:]])
    row["seconds"] = f"{time.monotonic() - began:.2f}"
    row["code"] = code
    said = run.said()
    row["said"] = run.event or said[-1][:500] if said or run.event else ""
    for process in run.all:
        if process.poll() is None:
            end(process)
    # Processes that are exiting get a second.
    end = time.monotonic() + 1
    while (left := sorted(listing() - before)) and time.monotonic() < end:
        time.sleep(0.05)
    if fabric == "same GPU" and (more := gpu_memory() - gpu_before) > 64:
        left.append(f"{more} MiB of GPU memory")
    row["left"] = "; ".join(left)[:200]
    wrong = []
    if code == "hang":
        wrong.append(f"did not end within {LIMIT} s")
    elif code not in expected.codes:
        wrong.append(f"exit code {code}")
    elif (code != 0 or run.event) and expected.words and not re.search(expected.words, row["said"]):
        wrong.append("the message does not state the cause")
    if code != 0 and code != 141 and not row["said"]:
        wrong.append("no message")
    # A closed stdout is detected by the next row, a cut network when ranks next communicate. The time of a fault injected by an option is unknown,
    # so the whole run is timed.
    bound = {None: WHOLE, "stdout": WHOLE, "memory": WHOLE, "full GPU": WHOLE, "stop": RANKS + MARGIN, "cut": RANKS + 3 * MARGIN,
             "token": RANKS + MARGIN}
    bound = bound.get(expected.inject, DEADLINE + MARGIN)
    if code not in ("hang", 0) and float(row["seconds"]) > bound:
        wrong.append(f"took longer than {bound} s")
    if expected.rows:
        wrong += broken_rows(Path(place))
    if row["left"]:
        wrong.append(f"left: {row['left']}")
    return row | dict(status="ok" if not wrong else f"failed: {'; '.join(wrong)}")


def loopback(up):
    """Sets the cell's loopback interface up or down, like `ip link set lo`, without `ip`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def gpu_memory():
    """Returns the MiB in use on the first GPU."""
    words = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        raise Skip("no GPU on this machine") from None


def listing():
    """Lists possible leftovers of a run: processes and files."""
    files = {str(path) for point in ("/dev/shm", "/tmp") for path in Path(point).rglob("*") if not path.is_dir() or not any(path.iterdir())}
    mine = {str(os.getpid()), "1"}
    processes = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name not in mine:
            try:
                name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if name and "faults.py" not in name:
                processes.add(f"process {name[:60]}")
    return files | processes


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


def job(run, expected):
    """Runs ranks on this machine. Returns the time of the fault and the exit code."""
    words, inject = run.line or PROGRAMS[run.program].split() + run.words, expected.inject
    if run.on_gpu and not run.line:
        words.remove("-d"), words.remove("emulated")
        if run.program == "moe" or run.program.startswith("jacobi"):
            # On a GPU the run would otherwise end before the fault.
            words[words.index("-n") + 1] = "3000"
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
            if code in (0, *expected.codes):
                begin = time.monotonic()
                code = ended(run.start(words, stdout=subprocess.DEVNULL, preexec_fn=partial(limit_memory, limit)))
        return begin, code
    if inject in ("trap", "full GPU"):
        neighbour = neighbour_on_gpu(run.place)
    if inject == "full GPU":
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


def served(run, expected):
    """Runs a server and a writing peer. The fault affects the peer."""
    inject = expected.inject
    leaves = inject in ("kill", "stop")
    visits = "2" if leaves else "1"
    mine = run.words if "soft" in " ".join(run.words) else run.words[2:]
    server = run.start(["serve", "--listen", "127.0.0.1:0", "--peers", "2", "--visits", visits, "--bytes", "64K", *run.well], stdout=subprocess.PIPE)
    events = Events(server)
    address = events.until(r"(127\.0\.0\.1:\d+)", "its address").group(1)
    count = {"disk": "20000", "stdout": "20000", "back": "20000", None: "200", "clock": "200", "garbage": "2000", "token": "200", "memory": "200"}
    run.line = ["join", address, "-b", "4K", "-n", count.get(inject, "2000000"), *TABLE["rows"].split(), *mine]
    # The peer's options name only software NICs; other networks are chosen by the server.
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
        begin, code = job(run, expected)
    ending = time.monotonic() - begin
    if ended(server, RANKS) == "hang":
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


PROGRAM_OF = {"serve + join": served}


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
    if sys.argv[1:2] == ["--cell"]:
        print(json.dumps(cell(*sys.argv[2:])))
    elif sys.argv[1:2] == ["--merge"]:
        merge(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["--page"]:
        sys.exit(subprocess.run([sys.executable, REPO / "scripts/faults-page.py", *sys.argv[2:]]).returncode)
    elif sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
    else:
        sys.exit(main())
