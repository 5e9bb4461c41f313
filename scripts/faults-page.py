#!/usr/bin/env python3
"""Generates the parts of docs/faults.md between its markers from results of the table faults.

    scripts/faults-page.py FOLDER [--check]

FOLDER contains faults.csv.xz: the file that scripts/matrix.py writes, or several of them, in which a later row of a cell replaces an earlier one. With
--check, exit code 1 if the page differs.
"""

import collections
import csv
import lzma
import re
import sys
from pathlib import Path

from rows import load

PAGE = Path("docs/faults.md")
ERRORS = "error completion "
# Faults as recorded in tables, and as shown.
FAULTS = {
    "late beyond the deadline": "completion after the deadline",
    '"again" for ever': "every post returns EAGAIN",
    "rail slow by 100": "rail slower by a factor of 100",
    "proxy thread dead": "`proxy-vanish`",
    "proxy stopped": "`proxy-stop`",
    "rails silent": "`rails-silent`",
    "peer stopped": "peer suspended (SIGSTOP)",
    "stdout closed": "reader of stdout exits",
    "full disk under --csv": "disk of `--csv` full",
    "garbage at the port": "garbage at every port",
    "clock jumps": "system clock jumps",
    "network cut": "network interrupted",
    "network cut for 1 s": "network interrupted for 1 s",
    "no memory": "no memory left",
    "a neighbour's kernel traps": "kernel of another rank traps",
}


def merged(fault):
    return "error completion, each of 16 statuses" if fault.startswith(ERRORS) else fault


def unique(words):
    return list(dict.fromkeys(words))


def table(heading, lines):
    return "\n".join(["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|", *("| " + " | ".join(line) + " |" for line in lines)])


def codes(rows):
    """Returns the exit codes of the cells that ended as expected, the most frequent first."""
    counts = collections.Counter(row["code"] for row in rows if row["status"] == "ok")
    return ", ".join(sorted(counts, key=lambda code: (-counts[code], int(code)))) or "."


def recorded(folder):
    """Returns the rows in the order of the table's faults. Earlier tables have `said` instead of `message`."""
    order = [merged(one["fault"]) for kind in ("nic", "proxy", "outside", "gpu") for one in load("faults")["vars"][f"{kind}_faults"]]
    rows = {}
    with lzma.open(folder / "faults.csv.xz", "rt", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("program,") or not rows):
            cell = row["program"], row["fabric"], row["fault"]
            if cell not in rows or not row["status"].startswith(("not", "skipped")):
                rows[cell] = {"message": row.get("said", "")} | row
    return sorted(rows.values(), key=lambda row: order.index(merged(row["fault"])))


def page(folder, text):
    """Returns the text of the page with its generated parts."""
    rows = recorded(folder)
    by_cell = collections.defaultdict(list)
    for row in rows:
        by_cell[row["fabric"], merged(row["fault"])].append(row)
    faults = unique(merged(row["fault"]) for row in rows)
    fabrics = [one["fabric"] for one in load("faults")["vars"]["fabrics"] if any(row["fabric"] == one["fabric"] for row in rows)]
    apply = [row for row in rows if not row["status"].startswith("not applicable")]
    count = lambda begin: sum(row["status"].startswith(begin) for row in apply)
    again = sum(row["status"] == "ok" and row["first_try"] != "" for row in apply)
    counts = (f"{len(unique(row['fault'] for row in rows))} faults with {len(unique(row['program'] for row in rows))} programs over {len(fabrics)} fabrics: "
              f"{len(apply)} applicable cells. {count('ok')} ended as expected, {count('failed')} failed, and {count('not run') + count('skipped')} "
              f"were not run. On a busy machine {again} had to be repeated.")
    lines, messages = [], []
    for fault in faults:
        ran = [row for row in apply if merged(row["fault"]) == fault and row["status"] == "ok"]
        longest = f"{max(float(row['seconds']) for row in ran):.1f}" if ran else "0"
        shown = FAULTS.get(fault, fault)
        line = [shown, *(codes(by_cell[fabric, fault]) for fabric in fabrics), longest]
        # Faults with the same exit codes share a row.
        same = next((earlier for earlier in lines if earlier[1:-1] == line[1:-1]), None)
        if same:
            same[0] += f"; {shown}"
            same[-1] = max(same[-1], longest, key=float)
        else:
            lines.append(line)
        message = next((row["message"] for row in ran if row["message"] and row["code"] != "0"), None)
        if message:
            # Faults whose messages start with the same text, apart from numbers, share one example.
            start = lambda text: re.sub(r"\d+", "", text)[:45]
            alike = next((line for line in messages if start(line[1]) == start(plain(message))), None)
            if alike:
                alike[0] += f"; {shown}"
            else:
                messages.append([shown, plain(message)])
    short = [f"- {row['program']} / {row['fabric']} / {row['fault']}: {plain(row['status'].split(': ', 1)[1])}" for row in apply if row["status"].startswith("failed")]
    parts = {"counts": counts, "codes": table(["faults", *fabrics, "longest, s"], lines), "messages": table(["faults", "message"], messages),
             "failed": "\n".join(short) or "None."}
    return re.sub(r"(<!-- faults: (\w+) -->\n).*?(?=<!-- end -->)", lambda part: f"{part[1]}{parts[part[2]]}\n", text, flags=re.S)


def plain(text):
    """Returns the start of the text as code, short enough for a table. Process numbers and the like stay as recorded."""
    text = text.removeprefix("ginlab: ").replace("`", "'").replace("|", "/")
    return "`" + (text if len(text) <= 100 else text[:100].rsplit(" ", 1)[0] + " ...") + "`"


def main():
    folder = Path(sys.argv[1])
    old = PAGE.read_text()
    text = page(folder, old)
    if sys.argv[2:] == ["--check"]:
        if old != text:
            sys.exit(f"faults-page.py: {PAGE} differs from {folder}; run scripts/faults-page.py {folder}")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
