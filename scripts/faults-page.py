#!/usr/bin/env python3
"""Generates docs/faults.md from the table of scripts/faults.py, which calls this: faults-page.py FOLDER [--check].

FOLDER contains faults.csv.xz, and README.md, some sections of which are copied to the page. With --check, exit code 1 if the page differs.
"""

import collections
import csv
import lzma
import re
import sys
from pathlib import Path

PAGE = Path("docs/faults.md")
ERRORS = "error completion "
HEAD = """# Faults

Behaviour of ginlab's programs if something fails during a run: {faults} faults, {programs} programs, {fabrics} fabrics, {cells} applicable cells. It is for users who
need to interpret a failed run, and for maintainers. `scripts/faults.py` measures the table
([{folder}](../{folder}/README.md): machine, commit, every row); `scripts/faults.py --page {folder}` generates this page from it.

A run that meets a fault:

- exits on its own with one of the [exit codes](exit-codes.md), within its deadline (`-t`, here 3 or 4 s) plus two seconds. Ranks that wait for a rank without progress
  wait for twice the deadline plus six seconds (plus three in the runs of this table), because that rank may be in its own wait;
- reports the cause in one line, and leaves complete rows in its output;
- leaves nothing: no process, no file in `/dev/shm` or `/tmp`, no MPS server, no GPU memory.

Each cell runs in its own namespaces (processes, mounts, network), in which this is checked. {counts}

## Faults of `--fault`

Programs with proxies (`proxy`, `shmem`, `collective`, `jacobi`, `moe`) inject these into each proxy of each rank. `N` counts the commands of a
proxy's ring from 0, including signals without a put.

| `--fault` | effect | result of the run |
|---|---|---|
| `proxy-vanish=N` | the proxy thread exits after `N` commands without a report | deadline: 124 |
| `proxy-stop=N` | the proxy thread stops normally after `N` commands | 1 |
| `rails-silent=N` | completions are not polled after `N` commands | deadline: 124 |
| `corrupt=N` | command `N` sends one byte less, without an error | verification detects it: 1. A command without bytes (a signal without a put) is not changed; a note on stderr reports this |

`direct` and the NCCL plugin have their own faults: [direct](../experiments/direct/README.md), [nccl.md](nccl.md).

## Exit codes by program

A number is the exit code of the run; 0 means that the run continued and was correct. Parentheses: the cell failed on a busy machine, and returned this code when it was
repeated without other cells. `x`: failed. `.`: not applicable. `-`: not run. The statuses of error completions share one row, with all codes that occurred.
"""
FABRICS = {
    "tcp": "libfabric's tcp provider, over the loopback",
    "soft-efa 1.17": "libfabric 1.17's own EFA provider over [software NICs](soft-efa.md)",
    "soft-efa 2.1": "the same with libfabric 2.1 (Debian 13)",
    "worst": "the [least ordered network](worst-network.md) that EFA permits",
    "memory": "mapped memory of the emulated device",
    "direct": "kernels that drive the queue of a software NIC themselves",
    "same GPU": "kernels on one GPU, with MPS; puts use mapped memory, those of `proxy` use tcp",
}
# Reasons as recorded in tables, and as shown.
REASONS = {
    "only cards in software can be told to do this": "only software NICs can inject this fault",
    "no put of it goes by mapped memory": "its puts do not use mapped memory",
    "its kernels do not drive a card": "its kernels do not drive a NIC",
    "no proxy carries its puts": "its puts do not use a proxy",
    "server and client are tasks of one process here": "server and client are tasks of one process",
    "one process uses the GPU, by a context of its own": "only one process uses the GPU, with its own context",
}


def merged(fault):
    return "error completion, each of 16 statuses" if fault.startswith(ERRORS) else fault


def shown(rows):
    """Returns the short form of a cell, or of the cells of all statuses."""
    if not rows:
        return "-"
    status = [row["status"] for row in rows]
    if all(text.startswith("not applicable") for text in status):
        return "."
    if any(text.startswith("failed") for text in status):
        return "x"
    ran = [row for row in rows if row["status"] == "ok"]
    if not ran:
        return "-"
    again = any(row["first_try"] for row in ran)
    codes = ", ".join(sorted({row["code"] for row in ran}, key=int))
    part = f" ({len(ran)} of {len(rows)})" if 1 < len(rows) != len(ran) else ""
    return (f"({codes})" if again else codes) + part


def unique(words):
    return list(dict.fromkeys(words))


def table(heading, lines):
    return "\n".join(["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|", *("| " + " | ".join(line) + " |" for line in lines)])


def page(folder):
    with lzma.open(folder / "faults.csv.xz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    by_cell = collections.defaultdict(list)
    for row in rows:
        by_cell[row["program"], row["fabric"], merged(row["fault"])].append(row)
    programs, faults = unique(row["program"] for row in rows), unique(merged(row["fault"]) for row in rows)
    fabrics = [fabric for fabric in FABRICS if any(row["fabric"] == fabric for row in rows)]
    apply = [row for row in rows if not row["status"].startswith("not applicable")]
    count = lambda begin: sum(row["status"].startswith(begin) for row in apply)
    again = sum(row["status"] == "ok" and row["first_try"] != "" for row in apply)
    counts = (f"Of {len(apply)} cells, {count('ok')} ended as expected ({again} of them when repeated without other cells), {count('failed')} failed, "
              f"{count('not run') + count('skipped')} were not run.")
    parts = [HEAD.format(faults=len(unique(row["fault"] for row in rows)), programs=len(programs), fabrics=len(fabrics), cells=len(apply),
                         folder=folder, counts=counts)]
    for fabric in fabrics:
        applies = lambda fault, program: shown(by_cell[program, fabric, fault]) != "."
        columns = [program for program in programs if any(applies(fault, program) for fault in faults)]
        lines = [[fault, *(shown(by_cell[program, fabric, fault]) for program in columns)] for fault in faults
                 if any(applies(fault, program) for program in columns)]
        parts.append(f"### {fabric}\n\n{FABRICS[fabric][0].upper()}{FABRICS[fabric][1:]}.\n\n" + table(["fault", *columns], lines) + "\n")
    parts.append("## Messages and times\n\nLongest time from the fault to the exit of the last process, over all cells of the fault, and one message as an example, in "
                 "the words of the build that was measured. If an option injects the fault or the run succeeds, the time is that of the whole run.\n")
    lines = []
    for fault in faults:
        ran = [row for row in apply if merged(row["fault"]) == fault and row["status"] == "ok"]
        if ran:
            longest = max(float(row["seconds"]) for row in ran)
            said = next((row for row in ran if row["said"]), None)
            example = f"`{said['program']}` / {said['fabric']}: {plain(said['said'])}" if said else "none, as expected"
            lines.append([fault, f"{longest:.1f}", example])
    parts.append(table(["fault", "longest, s", "message"], lines) + "\n")
    parts.append("## Cells that do not apply\n")
    reasons = collections.defaultdict(int)
    for row in rows:
        if row["status"].startswith("not applicable"):
            reason = row["status"].split(": ", 1)[1]
            reasons[REASONS.get(reason, reason)] += 1
    parts.append("\n".join(f"- {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])) + "\n")
    skipped = collections.Counter(row["status"] for row in apply if row["status"].startswith(("skipped", "not run")))
    if skipped:
        parts.append("## Cells that were not run\n\n" + "\n".join(f"- {count}: {status.split(': ', 1)[-1]}" for status, count in skipped.most_common()) + "\n")
    short = [row for row in apply if row["status"].startswith("failed")]
    if short:
        parts.append("## Failed cells\n\n" + "\n".join(
            f"- {row['program']} / {row['fabric']} / {row['fault']}: {plain(row['status'].split(': ', 1)[1])}" for row in short) + "\n")
    for section in ("Known failures", "Faults covered by other tests", "Soak", "Parser fuzzing"):
        found = re.search(rf"^## {section}\n.*?(?=^## |\Z)", (folder / "README.md").read_text(), re.M | re.S)
        if found:
            parts.append(found.group(0).strip() + "\n")
    return "\n".join(parts)


def plain(text):
    """Returns the text as code on one line, short enough for a table. Process numbers and the like stay as recorded."""
    text = text.replace("`", "'").replace("|", "/")
    return "`" + (text if len(text) <= 160 else text[:160] + "...") + "`"


def main():
    folder = Path(sys.argv[1])
    text = page(folder)
    if sys.argv[2:] == ["--check"]:
        if PAGE.read_text() != text:
            sys.exit(f"faults-page.py: {PAGE} differs from {folder}; run scripts/faults.py --page {folder}")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
