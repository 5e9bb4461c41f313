#!/usr/bin/env python3
"""Runs tables of commands: conditions, time limits, expected results, and columns of CSV files.

    scripts/matrix.py TABLE... [--out DIR] [OPTIONS]     TABLE: a file, or the name of one in scripts/tables

DIR gets log.txt (commands with their output), steps.csv (a line per row), failures.txt, summary.txt, and what the rows write; with several tables
in a directory each. Exit codes: 0 ok, 1 a row failed, 2 usage or an invalid table.

A table is TOML. Keys of a row; those of its [[group]] and of `row` are defaults:

  name       unique in the table                          limit     seconds [default: 60]
  command    words to run, without a shell                shell     the same for bash
  args       fills {args} in the command                  env       variables of the environment; an empty one is removed
  let        variables                                    each      variables, each with a list, a range "1..9" or words; one row per combination
  needs      gpu, gpus=N, emulated, root, namespaces, $VARIABLE, tool:NAME, file:PATH, set:NAME, unset:NAME: otherwise the row is skipped
  exit       exit codes [default: 0], or "any"            says, not regular expressions that the output must (not) match
  verify     the CSV file has rows, all ok and right      least     {column, value, where}: the selected rows have at least this value
  then       command that must succeed afterwards         leaves    globs, "gpu" (memory), "mps" (servers): must not be left
  beside     commands at the same time (that name {pid}: after the start), which must succeed
  ranks      number of processes with RANK and a port; {rank} in env and words
  signal     {name, rank, runs, once, after}: sent `after` seconds after `once` is printed and rank `runs` runs; to `rank`, or to the command
  gives      variables for later rows; {stdout} is what this row printed          optional  a failure is not counted
  reads      regular expression of the output whose named groups are variables    record    {file, columns}: a line "HEADER=VARIABLE" per row
  stdout     file for standard output    header  object for NAME.header.json      merge     file that collects the rows' CSV files
  finish     runs at the end in any case                                          always    is not thinned out by --every
  when       expression of a combination's variables; without it the combination is no row
  jobs       (a group's) rows at the same time, each on its own core, except with `cell`
  cell       own namespaces (processes, /dev/shm, /tmp, IPC, network) and working directory; nothing must be left there; needs "namespaces"
  skip       exit code that means that the row cannot run here          retry     a row that has failed is run once more without others

`{name}` is a variable, `{$NAME}` one of the environment, `{=EXPRESSION}` is Python, `{{` a brace. Variables: [vars], and of it [vars.gpu] or
[vars.emulated] (the table's `gpus` is what it needs to use a GPU); ginlab, root, out, tmp, csv, device, gpus, gpu0, gpu01, cores, arch, target, scripts,
number, group, name, load; results: code, seconds, message, command, rows, wrong_bytes, leftovers, status, first_try, first_COLUMN, last_COLUMN.
A group with `use = TABLE` has the rows of that table for which `matching` occurs in GROUP/ARGS, with its own keys on top.
"""

import argparse
import concurrent.futures
import csv
import functools
import glob
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from processes import SPACES, end, environment_of, exit_code, free_port, processes, with_rank
from rows import ROOT, Invalid, as_list, combinations, expand, filled, load, variables


def output_of(words):
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def read_csv(path):
    try:
        with open(path, newline="", errors="replace") as file:
            return list(csv.DictReader(line for line in file if not line.startswith("#")))
    except OSError:
        return []


def wrong_bytes(row):
    """Returns the number of wrong bytes in a row of ginlab. Rows of earlier schemas have another name for the column."""
    return row.get("wrong_bytes") or row.get("wrong") or ""


def chosen(rows, where):
    """Returns the rows whose columns have these values; a list permits several, `>=N` compares numbers."""
    def fits(row, column, wanted):
        value = row.get(column) or ""
        if isinstance(wanted, str) and wanted.startswith(">="):
            return value != "" and float(value) >= float(wanted[2:])
        return value in map(str, wanted if isinstance(wanted, list) else [wanted])
    return [row for row in rows if all(fits(row, *pair) for pair in where.items())]


def append(path, header, values):
    """Appends a line to a CSV file. A new one gets a header file with the command, as those of ginlab have."""
    if new := not path.exists():
        command = shlex.join(["scripts/matrix.py", *sys.argv[1:]])
        path.with_suffix(".header.json").write_text(json.dumps({"command": command}, indent=2) + "\n")
    with open(path, "a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(([header] if new else []) + [values])


class Machine:
    """The machine that runs the rows."""

    def __init__(self):
        os.environ["PATH"] += ":/usr/local/cuda/bin"
        self.gpus = len(re.findall(r"^GPU ", output_of(["nvidia-smi", "-L"]), re.M))
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        self.memory = self.gpu_memory()

    def lacks(self, need, names):
        """Returns why a condition is not met, or None."""
        kind, _, what = filled(need, names).partition(":")
        value = lambda: filled(names.get(what, ""), names)
        checks = {
            "gpu": lambda: f"needs {max(1, names['needed'])} GPUs, {self.gpus} here" if names["device"] != "gpu" else None,
            "emulated": lambda: "only without a GPU" if names["device"] == "gpu" else None,
            "root": lambda: "needs root" if os.geteuid() else None,
            "namespaces": lambda: None if self.makes_namespaces() else "cannot create namespaces here (needs root)",
            "tool": lambda: None if shutil.which(what) else f"no {what} here",
            "file": lambda: None if Path(ROOT, what).exists() else f"no {what} here",
            "set": lambda: None if value() else f"no {what} here",
            "unset": lambda: f"{what} is {value()}" if value() else None,
        }
        if kind.startswith("gpus="):
            return None if self.gpus >= int(kind[5:]) else f"needs {kind[5:]} GPUs, {self.gpus} here"
        if need.startswith("$"):
            return None if os.environ.get(need[1:]) else f"{need[1:]} is not set"
        if kind not in checks:
            raise Invalid(f"unknown condition {need}")
        return checks[kind]()

    @functools.cache
    def makes_namespaces(self):
        return subprocess.run([*SPACES, "true"], capture_output=True).returncode == 0

    def gpu_memory(self):
        used = output_of(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", self.visible[0]]).strip()
        return int(used) if used.isdigit() else 0

    def left(self, what, names):
        """Returns what a row has left."""
        what = filled(what, names)
        if what == "gpu":
            more = self.gpu_memory() - self.memory
            return [f"{more} MiB of GPU memory"] if more > 64 else []
        if what == "mps":
            own = f"CUDA_MPS_PIPE_DIRECTORY={names['tmp']}/ginlab-mps-".encode()
            return [f"MPS server {pid}" for pid in processes() if any(word.startswith(own) for word in environment_of(pid))]
        return glob.glob(what)


class Table:
    """A table and the results of its rows."""

    def __init__(self, table, options, machine, several):
        self.table, self.options, self.machine, self.lock = table, options, machine, threading.Lock()
        self.begin, self.failed, self.counts, self.running = time.monotonic(), 0, {}, []
        self.top = Path(options.out)
        self.out = self.top / table["stem"] if several else self.top
        needed = table.get("gpus", 0)
        self.names = dict(ginlab=options.ginlab, root=ROOT, out=self.out, tmp=options.tmp, gpus=machine.gpus, needed=needed, gpu0=machine.visible[0],
                          gpu01=",".join(machine.visible[:2]), device="gpu" if needed and machine.gpus >= needed else "emulated", rank="", args="",
                          arch=os.uname().machine, cores=os.cpu_count(), scripts=ROOT / "scripts", target=ROOT / os.environ.get("CARGO_TARGET_DIR", "target"), table=table["stem"])
        self.names |= variables(table, self.names["device"]) | options.set
        self.seconds = options.seconds or table.get("seconds") or float("inf")
        self.rows = expand(table, self.names)
        if any(row.get("cell") for row in self.rows) and not options.list:
            self.copy_for_cells()

    def copy_for_cells(self):
        """Copies the scripts and the program to a directory that cells can read: each has its own /tmp and /dev/shm."""
        self.names |= {"scripts": Path(self.options.work, "scripts"), "ginlab": Path(self.options.work, "ginlab")}
        shutil.copytree(ROOT / "scripts", self.names["scripts"], dirs_exist_ok=True)
        program = Path(self.options.ginlab)
        # The software NICs are in the directory of the program; cargo builds them in its directory deps.
        for path in (program.with_name("libsoft_efa.so"), program.parent / "deps/libsoft_efa.so", program):
            if path.exists():
                shutil.copy(path, self.names["ginlab"] if path == program else self.options.work)

    def selected(self):
        """Returns the rows that --only and --every select, with those of the table that give variables or finish."""
        wanted = [row["number"] for row in self.rows if self.options.only.search(f"{self.table['stem']}/{row['group']}/{row['name']}")
                  and (row["number"] % self.options.every == 0 or row.get("always"))]
        return [row for row in self.rows if wanted and (row["number"] in wanted or row.get("gives") or row.get("finish"))]

    def names_of(self, row):
        own = dict(args=row["args"], name=row["name"], number=row["number"], group=row["group"], csv=self.out / f"{row['name']}.csv")
        return self.names | row["let"] | own

    def words(self, row, names, text=None):
        if text is None and "shell" in row:
            return ["bash", "-c", filled(row["shell"], names)]
        line = filled(text or row["command"], names)
        return shlex.split(re.sub(r"(?<= )(-r|--repeats) \d+", r"\1 2", line) if self.options.quick else line)

    def run(self):
        """Runs the rows. Returns whether none has failed."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.begin = time.monotonic()
        passed = {row["step"] for row in read_csv(self.top / "steps.csv") if (row["table"], row["result"]) == (self.table["stem"], "ok")}
        rows = [row for row in self.selected() if row["name"] not in passed or row.get("gives") or row.get("finish")]
        try:
            for jobs, part in itertools.groupby((row for row in rows if not row.get("finish")), lambda row: row.get("jobs", 1)):
                self.together(list(part), self.options.jobs or int(filled(jobs, self.names)) if jobs != 1 else 1)
        finally:
            for row in (row for row in rows if row.get("finish")):
                self.report(row, *self.one(row, False))
        self.summarize()
        return not self.failed

    def together(self, rows, jobs):
        """Runs rows, `jobs` at the same time. If this program is interrupted, the processes of all rows are ended."""
        again = []

        def first(row):
            names, text = self.one(row, jobs > 1)
            if row.get("retry") and (names["result"] == "failed" or names["code"] == row.get("skip")):
                again.append((row, names["status"]))
            else:
                self.report(row, names, text)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(first, rows))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(self.running):
                    end(process)
                raise
        # On a busy machine deadlines pass; a second failure is a defect.
        for row, status in again:
            names, text = self.one(row, False)
            self.report(row, names | dict(first_try=status), text)

    def one(self, row, pinned):
        """Runs a row. Returns its variables with the results, and its output."""
        names = self.names_of(row) | dict(load=f"{os.getloadavg()[0]:.2f}")
        ended = lambda result, message, status="": names | dict(result=result, message=message, status=f"{result}: {status or message}")
        for need in as_list(row.get("needs", [])):
            if why := self.machine.lacks(need, names):
                names |= dict(code="", seconds=0)
                return ended("skipped", why), ""
        left = self.seconds - (time.monotonic() - self.begin)
        limit = row.get("limit", 60)
        if left < min(5, limit) and not row.get("finish"):
            names |= dict(code="", seconds=0)
            return ended("not run", "no time is left"), ""
        Path(names["csv"]).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=self.options.work if row.get("cell") else None) as place:
            code, took, text = self.execute(row, names, limit if row.get("finish") else min(limit, left), pinned, Path(place))
        lines = [line for line in text.splitlines() if line.strip()]
        message = ([line for line in lines if line.startswith("ginlab")] or lines or [""])[-1][:300]
        rows = read_csv(names["csv"])
        names |= dict(code=code, seconds=f"{took:.2f}", message=message, rows=len(rows), stdout=text.strip(),
                      wrong_bytes=sum(int(count) for one in rows if (count := wrong_bytes(one)).isdigit()))
        names |= {f"{place}_{column}": value for place, some in (("first", rows[:1]), ("last", rows[-1:])) for one in some for column, value in one.items() if column}
        if "skip" in row and code == row["skip"]:
            return ended("skipped", message), text
        if "reads" in row:
            found = list(re.finditer(row["reads"], text))
            names |= {name: "" for name in re.compile(row["reads"]).groupindex} | (found[-1].groupdict() if found else {})
        wrong = self.wrong(row, names, text, rows)
        if not wrong and "then" in row:
            words = ["timeout", "-k", "5", "300", *self.words(row, names, row["then"])]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
            text += done.stdout
            if done.returncode:
                wrong.append(f"{row['then'].split()[0]}: exit code {done.returncode}: {''.join(done.stdout.strip().splitlines()[-1:])}")
        if wrong:
            return ended("skipped" if row.get("optional") else "failed", "; ".join(wrong + [message] * (message != "")), "; ".join(wrong)), text
        with self.lock:
            self.names |= {name: filled(value, names) for name, value in row.get("gives", {}).items()}
        return names | dict(result="ok", status="ok"), text

    def execute(self, row, names, limit, pinned, place):
        """Runs the processes of a row. Returns exit code, seconds (since the signal, if there is one) and output."""
        pin = ["taskset", "-c", str(row["number"] % os.cpu_count())] if pinned and shutil.which("taskset") else []
        folder, started = ROOT, []
        if row.get("cell"):
            folder, pin = place, [*SPACES, sys.executable, f"{names['scripts']}/cell.py"]

        def start(words, to, more=None, rank="", out=None):
            own = {k: filled(v, names | {"rank": rank}) for k, v in row.get("env", {}).items()}
            environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
            environment |= {"TMPDIR": "/tmp" if row.get("cell") else str(names["tmp"])}
            environment = {k: v for k, v in (environment | own | (more or {})).items() if v or k not in own}
            with open(to, "ab") as file, open(out or os.devnull, "wb") as sink:
                started.append(subprocess.Popen(pin + words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sink if out else file, stderr=file,
                                                start_new_session=True))
            self.running.append(started[-1])
            return started[-1]

        text, others = place / "text", place / "others"
        out = filled(row["stdout"], names) if row.get("stdout") else None
        names["port"] = free_port()
        beside = [line for line in as_list(row.get("beside", [])) if filled(line, names | {"pid": "0"})]
        late = [line for line in beside if "\0" in filled(line, names | {"pid": "\0"})]
        ranks = row.get("ranks", 0)
        place_of = dict(WORLD_SIZE=str(ranks), MASTER_ADDR=filled(names.get("address", "127.0.0.1"), names), MASTER_PORT=str(names["port"])) if ranks else {}
        begun = time.monotonic()
        try:
            for rank in range(1, ranks):
                start(self.words(row, names | {"rank": rank}), others, place_of | {"RANK": str(rank)}, rank)
            for line in [line for line in beside if line not in late]:
                start(self.words(row, names, line), others)
            first = start(self.words(row, names | {"rank": 0}), text, place_of | {"RANK": "0"} if ranks else {}, 0, out)
            for line in late:
                start(self.words(row, names | {"pid": first.pid}, line), text)
            if "signal" in row:
                self.send(row["signal"], names, first, text, limit)
                begun = time.monotonic()
            until = time.monotonic() + limit
            codes = [exit_code(process, until - time.monotonic()) for process in [first] + [process for process in started if process != first]]
            code = next((code for code in codes if code != 0), 0)
        except OSError as error:
            return "none", 0.0, str(error)
        finally:
            took = time.monotonic() - begun
            for process in started:
                end(process)
                self.running.remove(process)
        said = [path.read_text(errors="replace") for path in (others, text) if path.exists()]
        return code, took, "".join(said) + (Path(out).read_text(errors="replace")[:100000] if out else "")

    def send(self, how, names, process, text, limit):
        """Sends the signal of a row in the middle of its run."""
        until = time.monotonic() + limit / 2
        rank = how.get("rank", how.get("runs"))
        under_way = lambda: (("once" not in how or re.search(how["once"], text.read_text(errors="replace"))) and
                             (rank is None or with_rank(process.pid, rank)))
        while process.poll() is None and time.monotonic() < until and not under_way():
            time.sleep(0.05)
        time.sleep(how.get("after", 0))
        for pid in (with_rank(process.pid, rank)[-1:] if "rank" in how else [process.pid]) if process.poll() is None else []:
            os.kill(pid, getattr(signal, f"SIG{filled(how['name'], names)}"))

    def wrong(self, row, names, text, rows):
        """Returns how the result differs from the expected one."""
        code, codes, wrong = names["code"], as_list(row.get("exit", 0), names), []
        codes = [int(word) if word.isdigit() else word for one in codes for word in filled(one, names).split()]
        if code == "limit":
            wrong.append("did not end within its limit")
        elif code == "none" or "any" not in codes and code not in codes:
            wrong.append(f"exit code {code} instead of {' or '.join(map(str, codes))}")
        wrong += [f"does not say {filled(one, names)!r}" for one in as_list(row.get("says", [])) if not re.search(filled(one, names), text)]
        wrong += [f"says {found[0]!r}" for one in as_list(row.get("not", [])) if (found := re.search(filled(one, names), text))]
        bad = sum(one.get("status") != "ok" or not wrong_bytes(one) for one in rows)
        if row.get("verify") and (not rows or bad or names["wrong_bytes"]):
            wrong.append(f"{len(rows)} rows, {bad} not ok, {names['wrong_bytes']} wrong bytes")
        for least in as_list(row.get("least", [])):
            some = chosen(rows, least.get("where", {}))
            below = [one for one in some if float(one.get(least["column"]) or 0) < least["value"]]
            if below or not some:
                wrong.append(f"{len(below)} of {len(some)} rows have {least['column']} below {least['value']}")
        until = time.monotonic() + 2
        found = lambda: [one for what in as_list(row.get("leaves", [])) for one in self.machine.left(what, names)]
        while (left := found()) and time.monotonic() < until:
            time.sleep(0.1)
        left += re.findall("^leftovers: (.+)$", text, re.M) if row.get("cell") else []
        names["leftovers"] = "; ".join(left)[:200]
        return wrong + ([f"left: {names['leftovers']}"] if left else [])

    def report(self, row, names, text):
        """Writes the results of a row."""
        line = names["command"] = shlex.join(self.words(row, {"pid": "PID", "port": "PORT"} | names))
        result, name = names["result"], f"{self.table['stem']}/{row['name']}"
        ended = f"   {'FAILED' if result == 'failed' else result}, {float(names['seconds']):.0f} s{'' if result == 'ok' else ': ' + str(names['message'])}"
        with self.lock:
            self.counts[result] = self.counts.get(result, 0) + 1
            self.failed += result == "failed"
            with open(self.top / "log.txt", "a") as log:
                log.write(f"== {name}: {line}\n{text.rstrip()}\n{ended}\n")
            print(f"== {name}: {line[:300]}\n{ended}" if result == "failed" else f"== {name}:{ended[2:]}", flush=True)
            append(self.top / "steps.csv", ["table", "group", "step", "result", "code", "seconds", "text"],
                   [names["table"], row["group"], row["name"], result, names["code"], names["seconds"], names["message"]])
            if result == "failed":
                with open(self.top / "failures.txt", "a") as failures:
                    failures.write(f"{name}: {names['message']}: {line}\n")
            if row.get("record") and (result != "skipped" or "status" in row["record"]["columns"]):
                columns = [column.partition("=") for column in row["record"]["columns"]]
                append(self.out / filled(row["record"]["file"], names), [head for head, _, _ in columns],
                       ["|".join(filled(one, names) for one in as_list(names.get(source or head, ""))) for head, _, source in columns])
            if row.get("header") and result == "ok":
                (self.out / f"{row['name']}.header.json").write_text(json.dumps({k: filled(v, names) for k, v in row["header"].items()}, indent=2) + "\n")
            if row.get("merge"):
                for one in read_csv(names["csv"]):
                    append(self.out / row["merge"], list(one), list(one.values()))
                for path in (Path(names["csv"]), Path(names["csv"]).with_suffix(".header.json")):
                    path.unlink(missing_ok=True)

    def summarize(self):
        """Writes figures of CSV files, and the number of rows by result."""
        lines = []
        for figure in self.table.get("summary", []):
            for names in [self.names | own for own in combinations(figure.get("each", {}), self.names)]:
                where = {column: [filled(one, names) for one in as_list(wanted)] for column, wanted in figure.get("where", {}).items()}
                where = {column: wanted[0] if len(wanted) == 1 else wanted for column, wanted in where.items()}
                some = chosen(read_csv(self.out / filled(figure["file"], names)), where)
                values = [row[figure["column"]] for row in some if row.get(figure["column"])]
                if figure.get("of") == "median" and values:
                    values = [f"{statistics.median(map(float, values)):.2f}"]
                lines += [f"{filled(figure['text'], names)}: {' '.join(values)}"] if values else []
        counts = ", ".join(f"{count} {result}" for result, count in sorted(self.counts.items()))
        lines.append(f"{self.table['stem']}: {counts or 'nothing to run'} in {time.monotonic() - self.begin:.0f} s; failed steps: {self.failed}")
        with open(self.top / "summary.txt", "a") as summary:
            summary.write("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="+")
    parser.add_argument("--out", help="directory for results [default: new, under /tmp]")
    parser.add_argument("--ginlab", default=os.environ.get("GINLAB", "target/release/ginlab"), help="program [default: GINLAB, or target/release/ginlab]")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows whose TABLE/GROUP/NAME matches")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th row")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the tables")
    parser.add_argument("--jobs", type=int, metavar="N", help="rows at the same time, where a table permits several")
    parser.add_argument("--seconds", type=float, metavar="N", help="time for each table; further rows are not run")
    parser.add_argument("--quick", action="store_true", help="two repeats, to test a table")
    parser.add_argument("--resume", action="store_true", help="do not repeat rows that have passed in DIR")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args()
    if wrong := [word for word in options.set if "=" not in word]:
        raise Invalid(f"--set {wrong[0]}: expected NAME=VALUE")
    options.set = dict(word.split("=", 1) for word in options.set)
    return options


def begin(options):
    """Checks the program, and prepares the directory."""
    program = shutil.which(options.ginlab)
    if not program:
        raise Invalid(f"no program {options.ginlab}: run make build, or name another with --ginlab")
    options.ginlab = str(Path(program).resolve())
    options.out = str(Path(options.out or tempfile.mkdtemp(prefix="ginlab-matrix.")).resolve())
    Path(options.out).mkdir(parents=True, exist_ok=True)
    for name in () if options.resume else ("steps.csv", "failures.txt", "summary.txt", "log.txt"):
        Path(options.out, name).unlink(missing_ok=True)
    print(f"results: {options.out}", flush=True)


def main():
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Short enough for the path of a socket.
    with (tempfile.TemporaryDirectory(prefix="gm.", dir="/tmp", ignore_cleanup_errors=True) as options.tmp,
          tempfile.TemporaryDirectory(prefix="gm.", dir="/var/tmp", ignore_cleanup_errors=True) as options.work):
        if options.list:
            options.out = options.out or "OUT"
        else:
            begin(options)
        machine = Machine()
        tables = [Table(load(name), options, machine, len(options.table) > 1) for name in options.table]
        if not options.list:
            return 0 if all([table.run() for table in tables]) else 1
        for table in tables:
            for row in table.selected():
                print(f"{table.table['stem']}/{row['name']}: {shlex.join(table.words(row, {'pid': 'PID', 'port': 'PORT'} | table.names_of(row)))}")
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as error:
        sys.exit(print(f"matrix.py: {error}", file=sys.stderr) or 2)
