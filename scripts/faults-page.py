#!/usr/bin/env python3
"""docs/faults.md from the table of scripts/faults.sh, which calls this: faults-page.py FOLDER [--check].

FOLDER has faults.csv.xz, and README.md, some sections of which go into the page.
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

What happens when something breaks in the middle of a run: {faults} faults against {programs} programs over {fabrics} fabrics, {cells} cells that
apply. `scripts/faults.sh` makes the table ([{folder}](../{folder}/README.md): machine, commit, every row), and
`scripts/faults.sh --page {folder}` draws this page from it.

A run that is met by a fault ends by itself, with a code of [exit codes](exit-codes.md), within its deadline (`-t`, here 3 or 4 s) and two seconds;
ranks that wait for a rank that says nothing any more wait for two deadlines and six seconds (three in the runs of this table), since that rank may be in a wait of its own. One line says what has
happened. The rows so far are whole. Nothing is left: no process, no file in `/dev/shm` or `/tmp`, no MPS server, no GPU memory. Each cell runs in name
spaces of its own (processes, mounts, network), where that is looked at.

{counts}

## How each program ends

A number is the exit code that came; 0: the run went on and was right. A code in brackets came when the cell was run again alone, since it had
fallen short on a busy machine. `x`: fell short. `.`: the cell does not apply. `-`: not run. Statuses of errors are one row: all
codes that came, and how many of the statuses were run.
"""
FABRICS = {
    "tcp": "libfabric's tcp provider, over the loopback",
    "soft-efa 1.17": "libfabric 1.17's own EFA provider over [cards in software](soft-efa.md)",
    "soft-efa 2.1": "the same with libfabric 2.1 (Debian 13)",
    "worst": "[the worst network](worst-network.md) that EFA may be",
    "memory": "mapped memory of the emulated device",
    "direct": "kernels that drive the queue of a card in software themselves",
    "same GPU": "kernels on one GPU, served by MPS; puts by mapped memory, those of `proxy` over tcp",
}


def merged(fault):
    return "error completion, each of 16 statuses" if fault.startswith(ERRORS) else fault


def shown(rows):
    """A cell, or the cells of all statuses, in few letters."""
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
    counts = (f"Of {len(apply)} cells {count('ok')} ended as they should ({again} of them when run again alone), {count('failed')} fell short, "
              f"{count('not run') + count('skipped')} were not run.")
    parts = [HEAD.format(faults=len(unique(row["fault"] for row in rows)), programs=len(programs), fabrics=len(fabrics), cells=len(apply),
                         folder=folder, counts=counts)]
    for fabric in fabrics:
        applies = lambda fault, program: shown(by_cell[program, fabric, fault]) != "."
        columns = [program for program in programs if any(applies(fault, program) for fault in faults)]
        lines = [[fault, *(shown(by_cell[program, fabric, fault]) for program in columns)] for fault in faults
                 if any(applies(fault, program) for program in columns)]
        parts.append(f"### {fabric}\n\n{FABRICS[fabric][0].upper()}{FABRICS[fabric][1:]}.\n\n" + table(["fault", *columns], lines) + "\n")
    parts.append("## What is said, and when\n\nThe longest time from the fault to the end of the last process among all cells of a fault (of the whole run "
                 "where an option makes the fault or the run ends well), and one line as an example.\n")
    lines = []
    for fault in faults:
        ran = [row for row in apply if merged(row["fault"]) == fault and row["status"] == "ok"]
        if ran:
            longest = max(float(row["seconds"]) for row in ran)
            said = next((row for row in ran if row["said"]), None)
            example = f"`{said['program']}` / {said['fabric']}: {plain(said['said'])}" if said else "nothing, and nothing has to be"
            lines.append([fault, f"{longest:.1f}", example])
    parts.append(table(["fault", "longest, s", "said"], lines) + "\n")
    parts.append("## Cells that do not apply\n")
    reasons = collections.defaultdict(int)
    for row in rows:
        if row["status"].startswith("not applicable"):
            reasons[row["status"].split(": ", 1)[1]] += 1
    parts.append("\n".join(f"- {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])) + "\n")
    skipped = collections.Counter(row["status"] for row in apply if row["status"].startswith(("skipped", "not run")))
    if skipped:
        parts.append("## Cells that were not run\n\n" + "\n".join(f"- {count}: {status.split(': ', 1)[-1]}" for status, count in skipped.most_common()) + "\n")
    short = [row for row in apply if row["status"].startswith("failed")]
    if short:
        parts.append("## Cells that fall short\n\n" + "\n".join(
            f"- {row['program']} / {row['fabric']} / {row['fault']}: {plain(row['status'].split(': ', 1)[1])}" for row in short) + "\n")
    for section in ("Falls short, and is not mended", "Fell short before, and mended", "Faults that other tests make", "Soak", "Spoilt inputs"):
        found = re.search(rf"^## {section}\n.*?(?=^## |\Z)", (folder / "README.md").read_text(), re.M | re.S)
        if found:
            parts.append(found.group(0).strip() + "\n")
    return "\n".join(parts)


def plain(text):
    """As code, on one line, short enough for a table; process numbers and the like differ by run and stay as they were."""
    text = text.replace("`", "'").replace("|", "/")
    return "`" + (text if len(text) <= 160 else text[:160] + "...") + "`"


def main():
    folder = Path(sys.argv[1])
    text = page(folder)
    if sys.argv[2:] == ["--check"]:
        if PAGE.read_text() != text:
            sys.exit(f"faults-page.py: {PAGE} is not what {folder} says: scripts/faults.sh --page {folder}")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
