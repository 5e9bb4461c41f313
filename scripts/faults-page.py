#!/usr/bin/env python3
"""Generates docs/faults.md from the table of scripts/faults.py, which calls this: faults-page.py FOLDER [--check].

FOLDER contains faults.csv.xz, and README.md, parts of which are copied to the page. With --check, exit code 1 if the page differs.
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

Behaviour of ginlab if something fails during a run, for users who interpret a failed run and for maintainers. `scripts/faults.py` runs {faults} faults
with {programs} programs over {fabrics} fabrics: {cells} applicable cells (combinations of program, fabric and fault).
{counts}
[The data](../{folder}/README.md) has machine, commit and every cell; `scripts/faults.py --page {folder}` generates this page.

A run with a fault:

- exits on its own with one of the [exit codes](exit-codes.md), within its deadline (`-t`, here 3 or 4 s) plus two seconds. Ranks that wait for a rank without
  progress wait for twice the deadline plus six seconds (plus three in this table), because that rank may be in its own wait;
- reports the cause in one line, and leaves complete rows in its output;
- leaves no process, no file in `/dev/shm` or `/tmp`, no MPS server and no GPU memory.

## Injected faults

`--fault` of `proxy`, `shmem`, `collective`, `jacobi` and `moe` affects each proxy of each rank. `N` counts the commands of a proxy's ring from 0, including
signals without a put.

| `--fault` | effect | exit code |
|---|---|---|
| `proxy-vanish=N` | the proxy thread exits after `N` commands without a report | 124 |
| `proxy-stop=N` | the proxy thread stops normally after `N` commands | 1 |
| `rails-silent=N` | completions are not polled after `N` commands | 124 |
| `corrupt=N` | command `N` sends one byte less, without an error; verification detects it. A command without bytes is not changed, and a note on stderr reports this | 1 |

Software NICs have further faults ([soft-efa.md](soft-efa.md#options)), as do [direct](../experiments/direct/README.md) and the [NCCL plugin](nccl.md).

## Exit codes

Exit codes of all programs over one fabric, the most frequent first; 0 means that the run continued and was correct. `.`: not applicable. The last column is
the longest time from a fault to the exit of the last process (of the whole run if an option injects the fault or the run succeeds).
`xzcat {folder}/faults.csv.xz | grep ',tcp,peer killed,'` prints single cells.
"""
FABRICS = {
    "tcp": "libfabric's tcp provider, over the loopback",
    "soft-efa 1.17": "libfabric 1.17's own EFA provider over [software NICs](soft-efa.md)",
    "soft-efa 2.1": "the same with libfabric 2.1 (Debian 13)",
    "worst": "the [least ordered network](worst-network.md) that EFA permits",
    "memory": "mapped memory of the emulated device",
    "direct": "kernels that write the queue of a software NIC themselves",
    "same GPU": "kernels on one GPU with MPS, through mapped memory (`proxy`: over tcp)",
}
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


def section(folder, name):
    """Returns a section of the folder's README, without its heading."""
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", (folder / "README.md").read_text(), re.M | re.S)[1].strip()


def page(folder):
    with lzma.open(folder / "faults.csv.xz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    by_cell = collections.defaultdict(list)
    for row in rows:
        by_cell[row["fabric"], merged(row["fault"])].append(row)
    faults = unique(merged(row["fault"]) for row in rows)
    fabrics = [fabric for fabric in FABRICS if any(row["fabric"] == fabric for row in rows)]
    apply = [row for row in rows if not row["status"].startswith("not applicable")]
    count = lambda begin: sum(row["status"].startswith(begin) for row in apply)
    again = sum(row["status"] == "ok" and row["first_try"] != "" for row in apply)
    counts = (f"Of these, {count('ok')} ended as expected, {count('failed')} failed, and {count('not run') + count('skipped')} were not run. "
              f"On a busy machine {again} had to be repeated.")
    parts = [HEAD.format(faults=len(unique(row["fault"] for row in rows)), programs=len(unique(row["program"] for row in rows)), fabrics=len(fabrics),
                         cells=len(apply), folder=folder, counts=counts)]
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
        said = next((row["said"] for row in ran if row["said"] and row["code"] != "0"), None)
        if said:
            # Faults whose messages start with the same text, apart from numbers, share one example.
            start = lambda text: re.sub(r"\d+", "", text)[:45]
            alike = next((line for line in messages if start(line[1]) == start(plain(said))), None)
            if alike:
                alike[0] += f"; {shown}"
            else:
                messages.append([shown, plain(said)])
    parts.append(table(["faults", *fabrics, "longest, s"], lines) + "\n")
    parts.append("\n".join(f"- `{fabric}`: {FABRICS[fabric]}" for fabric in fabrics) + "\n")
    parts.append("## Messages\n\nStarts of messages, as the measured build printed them. The rest names peer, rail, sizes and, if known, the remedy.\n")
    parts.append(table(["faults", "message"], messages) + "\n")
    short = [row for row in apply if row["status"].startswith("failed")]
    if short:
        parts.append("## Failed cells\n\n" + "\n".join(
            f"- {row['program']} / {row['fabric']} / {row['fault']}: {plain(row['status'].split(': ', 1)[1])}" for row in short) + "\n")
    parts.append(f"## Known failures\n\n{section(folder, 'Known failures')}\n")
    first = lambda name: section(folder, name).split("\n\n")[0]
    parts.append(f"## Soak and parser fuzzing\n\n{first('Soak')}\n\n{first('Parser fuzzing')}\n\n"
                 f"[The data](../{folder}/README.md) has the seeds and counts of both, and the tests of faults that this table does not cover.\n")
    return "\n".join(parts)


def plain(text):
    """Returns the start of the text as code, short enough for a table. Process numbers and the like stay as recorded."""
    text = text.removeprefix("ginlab: ").replace("`", "'").replace("|", "/")
    return "`" + (text if len(text) <= 100 else text[:100].rsplit(" ", 1)[0] + " ...") + "`"


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
