#!/usr/bin/env python3
"""Checks that tests detect errors: leaves out one rule or wait of the product at a time, and runs what must fail then.

    scripts/mutations.py worst [OPTIONS]   the rows of scripts/tables/worst.toml, on the emulated device (docs/worst-network.md)
    scripts/mutations.py nccl [OPTIONS]    the tests of NCCL's plugin (host/nccl_plugin/MUTANTS.md)
    scripts/mutations.py code [FILE...]    unit tests, with many small changes of these files by cargo mutants [default: all of the table code-mutants]

`code` takes hours on two idle cores. Options that are not listed go to cargo mutants, such as `--shard 0/8` for an eighth of the mutants of each package.
It fails if fewer than nine in ten mutants are caught or a survivor is not in docs/mutants.md. DIR gets PACKAGE/mutants.out.

For the others, one build contains all mutations of scripts/tables/NAME-mutants.toml: in a copy of the tree (DIR/tree), each place asks by name whether
it is left out, which an environment variable selects. The same program with nothing left out must pass first. DIR gets worst-mutants.csv (name, file,
found, seeds run, failing command, its message) or nccl-mutants.md (mutation, rule, code, caught by).

Exit codes: 0 ok, 1 a mutation was not found or the program fails with nothing left out, 2 usage, or a mutation does not fit the code or does not compile.

In a table, `from` occurs once in `file`; in `to`, KEPT is false if it is left out; `without` is a statement to leave out. `checks` selects what must
fail: a regular expression of the rows' arguments, or names of tests; those of unit tests begin with `lib:`.
"""

import argparse
import concurrent.futures
import csv
import filecmp
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from processes import end, exit_code
from rows import ROOT, Invalid, expand, filled, load

# Time limit of a command in seconds: several times the deadline of every wait (30 s). A command that exceeds it counts as failed.
EACH = {"worst": 150, "nccl": 200}
# Seeds are run in two passes, because most mutations fail early: the first few seeds of all rows, then the others.
FIRST_PASS = 3
CARGO_MUTANTS = "27.1.0"
KEPT = '''
/// Returns whether the code of this name is not left out (scripts/mutations.py).
pub fn kept(name: &str) -> bool {
    static LEFT_OUT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    LEFT_OUT.get_or_init(|| std::env::var("GINLAB_LEFT_OUT").unwrap_or_default()) != name
}
'''


def changed_files(table, mutations):
    """Returns the text of each file with all mutations, and adds the line of each one."""
    texts = {}
    for one in mutations:
        name, path = one["name"], table.get("folder", "") + one["file"]
        text = texts.get(path) or (ROOT / path).read_text()
        old = one.get("without") or one["from"]
        new = one.get("to") or f"if KEPT {{ {old} }}"
        if (count := text.count(old)) != 1 or "KEPT" not in new:
            raise Invalid(f"{name}: {path} has {count} times: {old}")
        one["line"] = (ROOT / path).read_text().partition(old)[0].count("\n") + 1
        texts[path] = text.replace(old, new.replace("KEPT", f'{table["question"]}("{name}")'))
    library = table["library"]
    texts[library] = (texts.get(library) or (ROOT / library).read_text()) + KEPT
    return texts


def copy_tree(tree, texts):
    """Copies the tree with the mutations. A file is written only if it differs, so that cargo does not rebuild the others."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines()
    for path in {*listed, *texts}:
        source, target = ROOT / path, tree / path
        if path in texts:
            if not target.is_file() or target.read_text() != texts[path]:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(texts[path])
        elif source.is_file() and not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def build(out, table):
    """Builds the copy. Returns cargo's output."""
    begun = time.monotonic()
    line = f"source scripts/toolchain.sh && choose_kernel_compiler any && GINLAB_COMMIT=mutants nice cargo {table['build']}"
    done = subprocess.run(["bash", "-c", line], cwd=out / "tree", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (out / "build.txt").write_text(done.stdout)
    if done.returncode:
        print("\n".join(line for line in done.stdout.splitlines() if line.startswith("error"))[:4000], file=sys.stderr)
        raise Invalid(f"the mutations do not compile ({out}/build.txt)")
    print(f"built in {time.monotonic() - begun:.0f} s", flush=True)
    return done.stdout


def run(words, limit, name, log, more=None, cwd=None):
    """Runs a command with `name` left out. Returns its exit code and output."""
    with open(log, "ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True, cwd=cwd,
                                   env=os.environ | {"GINLAB_LEFT_OUT": name} | (more or {}))
        try:
            code = exit_code(process, limit)
        finally:
            end(process)
    return code, Path(log).read_text(errors="replace")


def of_worst(out, mutations, options):
    """Runs the rows of the matrix for each mutation, until one fails. Returns whether all are found."""
    ginlab = out / "tree/target/demo/ginlab"
    for one in mutations:
        if not one["rows"]:
            raise Invalid(f"{one['name']}: the matrix has no such row: {one['checks']}")
    cores = queue.SimpleQueue()
    for job in range(options.jobs):
        cores.put(job % os.cpu_count())

    def soak(name, first, seeds, command, work):
        """Runs these seeds of a command up to the first that fails. Returns the code, the number of seeds run, and the message."""
        table, core = work.with_suffix(".csv"), cores.get()
        work.unlink(missing_ok=True)
        words = ["taskset", "-c", str(core), str(ginlab), "soak", "--fail-fast", "--first", str(first), "--seeds", str(seeds), "--no-header", "--csv", str(table)]
        code, text = run([*words, "--", *command.split()], EACH["worst"], name, work)
        cores.put(core)
        ran = 1
        if table.exists():
            with open(table, newline="") as file:
                ran = next((int(row["seeds"]) for row in csv.DictReader(file)), 1)
        said = re.search(r"seed \d+: .*", text) or re.search(r".*\Z", text.rstrip())
        # A kernel that uses data before it has arrived may fail in any way.
        return code, ran, re.sub(r"^ginlab: |: ginlab [a-z0-9]* -.*", "", said[0]) if code in (0, 1) else f"exit code {code}: {said[0]}"

    def search(one):
        total, command, work = 0, "", out / "logs" / one["name"]
        for first, seeds in ((1, min(FIRST_PASS, options.seeds)), (FIRST_PASS + 1, options.seeds - FIRST_PASS)):
            for command in one["rows"] if seeds > 0 else []:
                code, ran, said = soak(one["name"], first, seeds, command, work)
                total += ran
                if code != 0:
                    return [one["name"], one["file"], "error" if code in (2, 3) else "yes", total, command, said]
        return [one["name"], one["file"], "no", total, f"{len(one['rows'])} combinations", ""]

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        commands = sorted({command for one in mutations for command in one["rows"]})
        begun = time.monotonic()
        ends = pool.map(lambda pair: (pair[1], *soak("", 1, options.seeds, pair[1], out / "logs" / f"control-{pair[0]}")), enumerate(commands))
        if failed := [f"nothing is left out: ginlab {command}\n{said}" for command, code, _, said in ends if code != 0]:
            print("\n".join(failed), "the program fails with nothing left out", sep="\n", file=sys.stderr)
            return False
        print(f"nothing left out: {len(commands)} combinations of {options.seeds} seeds passed in {time.monotonic() - begun:.0f} s", flush=True)
        rows = []
        for row in pool.map(search, mutations):
            rows.append(row)
            print(",".join(map(str, row)), flush=True)
    with open(out / "worst-mutants.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["name", "file", "found", "seeds", "command", "error"], *rows])
    if broken := [row for row in rows if row[2] == "error"]:
        raise Invalid(f"cannot run: ginlab {broken[0][4]}")
    found = sum(row[2] == "yes" for row in rows)
    print(f"found {found} of {len(rows)}: {out}/worst-mutants.csv")
    return found == len(rows)


def of_nccl(out, mutations, options, said):
    """Runs the tests of each mutation. Returns whether all are caught."""
    programs = [re.search(rf"^ *Executable.*{of}.*\((.*)\)$", said, re.M) for of in (r"src/lib\.rs", r"double/main\.rs")]
    if not all(programs):
        raise Invalid(f"no tests in {out}/build.txt")
    unit, double = (out / "tree" / program[1] for program in programs)

    def failing(name, log, filters, patience, limit):
        """Returns the tests that fail, in Markdown."""
        log.unlink(missing_ok=True)
        more, codes = {"GINLAB_ROUNDS": str(options.rounds), "GINLAB_PATIENCE": str(patience)}, []
        for program, some in ((unit, [one[4:] for one in filters if one.startswith("lib:")]), (double, [one for one in filters if not one.startswith("lib:")])):
            codes += [run([str(program), *some], limit, name, log, more, out / "tree/host/nccl_plugin")[0]] if some else []
        # 134: a panic that nothing could catch; limit: tests that have not ended.
        failed = sorted(set(re.findall(r"^test (.*) \.\.\. FAILED$", log.read_text(errors="replace"), re.M)))
        return [f"`{one}`" for one in failed] or [f"the tests end with {code}" for code in codes if code != 0]

    begun = time.monotonic()
    everything = sorted({one for mutation in mutations for one in mutation["checks"].split()})
    if failed := failing("", out / "control.txt", everything, 100, 10 * EACH["nccl"]):
        print(f"with nothing left out these fail ({out}/control.txt):", *failed, sep="\n", file=sys.stderr)
        return False
    print(f"nothing left out: passed in {time.monotonic() - begun:.0f} s", flush=True)
    lines, missed = ["| mutation | rule | code | caught by |", "|---|---|---|---|"], 0
    for one in mutations:
        # A mutation's tests end early: a wait of the double is bounded by 15 s.
        ends = [failing(one["name"], out / "logs" / f"{one['name']}.txt", one["checks"].split(), 15, EACH["nccl"]) for _ in range(options.times)]
        by = Counter(failed for end_of in ends for failed in end_of)
        missed += not by
        caught = ", ".join(name + (f" {count} of {options.times}" if options.times > 1 else "") for name, count in sorted(by.items()))
        lines.append(f"| `{one['name']}` | {one['rule']} | {one['file']}:{one['line']} | {caught or 'NOT CAUGHT'} |")
        print(lines[-1], flush=True)
    (out / "nccl-mutants.md").write_text("\n".join(lines) + "\n")
    print(f"caught {len(mutations) - missed} of {len(mutations)}: {out}/nccl-mutants.md")
    return not missed


def drawn(line, package, options):
    """Returns options that select a sample of the mutants of a package: the same ones for the same seed."""
    listed = subprocess.run([*line, "--list"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    if not (names := sorted(name.strip() for name in listed if name.strip())):
        raise Invalid(f"{package} has no mutants for a sample")
    # A mutant's full name is unique.
    return [f"--re=^{re.escape(name)}$" for name in random.Random(f"{options.seed} {package}").sample(names, min(options.sample, len(names)))]


def of_code(out, packages, options, more):
    """Runs cargo mutants. Returns whether enough mutants are caught, and the survivors are known."""
    if unknown := set(options.files) - {file for files in packages.values() for file in files}:
        raise Invalid(f"{unknown.pop()} is not in scripts/tables/code-mutants.toml")
    for tool, version, package in (("mutants", CARGO_MUTANTS, f"cargo-mutants@{CARGO_MUTANTS}"), ("nextest", "", "cargo-nextest")):
        found = subprocess.run(["cargo", tool, "--version"], capture_output=True, text=True).stdout
        if version not in found or not found:
            print(f"installing {package} with cargo", file=sys.stderr)
            subprocess.run(["cargo", "install", "--quiet", "--locked", package], check=True)
    # Dependencies are compiled once, for all packages.
    os.environ["CARGO_TARGET_DIR"] = str(out / "target")
    known, counts, unknown = (ROOT / "docs/mutants.md").read_text(), defaultdict(Counter), []
    for package, files in packages.items():
        if not (chosen := [f"--file={file}" for file in files if file in (options.files or files)]):
            continue
        line = ["cargo", "mutants", "--package", package, *chosen]
        line += drawn(line, package, options) if options.sample else []
        (out / package).mkdir(parents=True, exist_ok=True)
        code = subprocess.run(["nice", *line, *(["--list"] if options.list else ["--output", out / package]), *more], cwd=ROOT).returncode
        # 2: some were missed, 3: some timed out.
        if code not in (0, 2, 3):
            raise Invalid(f"cargo mutants: exit code {code}")
        outcomes = [] if options.list else json.loads((out / package / "mutants.out/outcomes.json").read_text())["outcomes"]
        for mutant, summary in [(one["scenario"]["Mutant"], one["summary"]) for one in outcomes if one["scenario"] != "Baseline"]:
            counts[mutant["file"]][summary] += 1
            # Without the line number, which changes.
            if summary == "MissedMutant" and f"`{mutant['name'].split(': ', 1)[1]}`" not in known:
                unknown.append(mutant["name"])
    if options.list:
        return True
    kinds = ("CaughtMutant", "MissedMutant", "Timeout", "Unviable")
    print(f"{'file':<32} {'caught':>7} {'missed':>7} {'timeout':>8} {'unviable':>9}")
    for file, count in sorted(counts.items()):
        print(f"{file:<32} {count[kinds[0]]:>7} {count[kinds[1]]:>7} {count[kinds[2]]:>8} {count[kinds[3]]:>9}")
    # A mutant that times out counts as caught.
    caught, missed = (sum(count[kind] for count in counts.values() for kind in some) for some in (("CaughtMutant", "Timeout"), ("MissedMutant",)))
    if caught + missed == 0:
        raise Invalid("no mutant was tested")
    print(f"{caught} of {caught + missed} caught: {100 * caught / (caught + missed):.1f} %", *(f"not in docs/mutants.md: {name}" for name in unknown), sep="\n")
    return not unknown and caught >= 0.9 * (caught + missed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["worst", "nccl", "code"])
    parser.add_argument("--out", help="directory for results [default: target/WHICH-mutants]")
    parser.add_argument("--only", default="", metavar="REGEX", help="mutations whose name begins so")
    parser.add_argument("--list", action="store_true", help="only list the mutations and what must detect each")
    parser.add_argument("--seeds", type=int, default=20, help="worst: maximum seeds of a row; stops at the first that fails")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worst: commands at the same time, each on its own core")
    parser.add_argument("--rounds", type=int, default=3, help="nccl: rounds of the tests with chance (GINLAB_ROUNDS)")
    parser.add_argument("--times", type=int, default=1, help="nccl: runs of each mutation; the table counts those in which a test failed")
    parser.add_argument("--sample", type=int, metavar="N", help="code: N mutants of each package")
    parser.add_argument("--seed", type=int, default=1, help="code: seed of a sample")
    options, more = parser.parse_known_args()
    options.files = [word for word in more if word.endswith(".rs")]
    more = [word for word in more if word not in options.files]
    table = load(f"{options.which}-mutants")
    out = Path(options.out or ROOT / f"target/{options.which}-mutants").resolve()
    if options.which == "code":
        return 0 if of_code(out, table["packages"], options, more) else 1
    if options.files or more:
        parser.error(f"unknown argument {(options.files + more)[0]}")
    mutations = [one for one in table["mutations"] if re.match(options.only, one["name"])]
    if not mutations:
        raise Invalid(f"no mutation begins with {options.only}")
    texts = changed_files(table, mutations)
    if options.which == "worst":
        matrix = load("worst")
        names = dict(device="emulated", cores=options.jobs, **matrix["vars"])
        arguments = [filled("{args}", names | row["let"] | row) for row in expand(matrix, names)]
        for one in mutations:
            one["rows"] = [line for line in arguments if re.search(f"^({one['checks']}) ", line)]
    if options.list:
        for one in mutations:
            print(f"{one['name']:<28} {one['file'] + ':' + str(one['line']):<48} {len(one['rows']) if 'rows' in one else one['checks']}")
        return 0
    (out / "logs").mkdir(parents=True, exist_ok=True)
    copy_tree(out / "tree", texts)
    said = build(out, table)
    print(f"{len(mutations)} mutations", flush=True)
    return 0 if (of_worst(out, mutations, options) if options.which == "worst" else of_nccl(out, mutations, options, said)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as error:
        sys.exit(print(f"mutations.py: {error}", file=sys.stderr) or 2)
