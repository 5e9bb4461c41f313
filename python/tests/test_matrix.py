"""Tests of scripts/matrix.py: a wrong expectation fails its row, whatever is expected. Need only Python 3.11.

    python3 -m unittest discover -s python/tests
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MATRIX = ROOT / "scripts/matrix.py"
# A program for rows, which prints, writes a CSV file, and ends as its arguments request.
PROGRAM = """#!/bin/sh
csv=; code=0; columns=case,status,wrong,ratio
while [ $# -gt 0 ]; do
    case $1 in
    --say) echo "$2"; shift ;;
    --rows) printf '%s\\n%b' "$columns" "$2" >"$csv"; shift ;;
    --columns) columns=$2; shift ;;
    --csv) csv=$2; shift ;;
    --sleep) sleep "$2"; shift ;;
    --leave) echo x >"$2"; shift ;;
    --code) code=$2; shift ;;
    esac
    shift
done
exit $code
"""


class Rows(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "ginlab"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)

    def run_table(self, text: str, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        table = self.folder / "one.toml"
        table.write_text(textwrap.dedent(text))
        words = [sys.executable, str(MATRIX), str(table), "--out", str(self.folder / "out"), "--ginlab", str(self.program), *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=os.environ | (environment or {}))

    def steps(self) -> dict[str, dict[str, str]]:
        with open(self.folder / "out/steps.csv", newline="") as file:
            return {row["step"]: row for row in csv.DictReader(file)}

    def test_each_wrong_expectation_fails_its_row(self) -> None:
        rows = "--csv {csv} --rows 'put,ok,0,1.0\\nput,ok,0,0.9\\n'"
        named = "--csv {csv} --columns case,status,wrong_bytes,ratio --rows put,ok,0,1"
        for right, wrong, text in [
            ("exit = 3, args = '--code 3'", "exit = 0, args = '--code 3'", "exit code 3 instead of 0"),
            ("exit = [1, 3], args = '--code 3'", "exit = [1, 2], args = '--code 3'", "exit code 3 instead of 1 or 2"),
            ("says = 'rank [0-9]', args = '--say \"rank 1\"'", "says = 'rank 2', args = '--say \"rank 1\"'", "does not say 'rank 2'"),
            ("not = 'ERROR: [1-9]', args = '--say \"ERROR: 0\"'", "not = 'ERROR: [0-9]', args = '--say \"ERROR: 0\"'", "says 'ERROR: 0'"),
            ("limit = 9, args = '--sleep 0'", "limit = 0.2, args = '--sleep 9'", "did not end within its limit"),
            (f'verify = true, args = "{rows}"'.replace("\\n", "\\\\n"), "verify = true, args = '--csv {csv} --rows put,ok,1,1'", "1 rows, 0 not ok, 1 wrong bytes"),
            (f'verify = true, args = "{named}"', f'verify = true, args = "{named[:-3]}1,1"', "1 rows, 0 not ok, 1 wrong bytes"),
            (f'verify = true, args = "{rows}"'.replace("\\n", "\\\\n"), "verify = true, args = '--csv {csv} --rows put,failed,,1'", "1 rows, 1 not ok"),
            (f'least = {{ column = "ratio", value = 0.9, where = {{ case = "put" }} }}, args = "{rows}"'.replace("\\n", "\\\\n"),
             f'least = {{ column = "ratio", value = 0.95, where = {{ case = "put" }} }}, args = "{rows}"'.replace("\\n", "\\\\n"), "1 of 2 rows have ratio below 0.95"),
            (f'least = {{ column = "ratio", value = 0.9 }}, args = "{rows}"'.replace("\\n", "\\\\n"),
             f'least = {{ column = "ratio", value = 0.9, where = {{ case = "get" }} }}, args = "{rows}"'.replace("\\n", "\\\\n"), "0 of 0 rows"),
            ("then = 'true'", "then = 'false'", "false: exit code 1"),
            ("leaves = '{tmp}/other*', args = '--leave {tmp}/file'", "leaves = '{tmp}/fil*', args = '--leave {tmp}/file'", "left: "),
            ("beside = '{ginlab} --code 0'", "beside = '{ginlab} --code 4'", "exit code 4 instead of 0"),
            ("signal = { name = 'TERM', once = 'begun' }, exit = 143, shell = 'echo begun; exec sleep 9'",
             "signal = { name = 'TERM', once = 'begun' }, shell = 'echo begun; exec sleep 9'", "exit code 143 instead of 0"),
        ]:
            for row, code in ((right, 0), (wrong, 1)):
                with self.subTest(row=row):
                    done = self.run_table(f"[[group]]\ncommand = '{{ginlab}} {{args}}'\nrows = [{{ name = 'a', {row} }}]\n")
                    self.assertEqual((done.returncode, done.stderr), (code, ""), done.stdout)
                    step = self.steps()["a"]
                    self.assertEqual(step["result"], "failed" if code else "ok", step)
                    if code:
                        self.assertIn(text, step["text"])
                        self.assertIn(text, (self.folder / "out/failures.txt").read_text())

    def test_unmet_conditions_skip_rows_and_say_why(self) -> None:
        done = self.run_table("""
            gpus = 99
            [vars]
            given = ""
            [[group]]
            command = "{ginlab} --say {device}"
            rows = [
                { name = "gpu", needs = "gpu" },
                { name = "gpus", needs = "gpus=99" },
                { name = "tool", needs = "tool:no-such-tool" },
                { name = "file", needs = "file:no/such/file" },
                { name = "variable", needs = ["emulated", "$GINLAB_NO_SUCH_VARIABLE"] },
                { name = "early", needs = "set:given" },
                { name = "giver", gives = { given = "yes" }, says = "emulated" },
                { name = "late", needs = "set:given", command = "{ginlab} --say given={given}", says = "given=yes" },
                { name = "optional", optional = true, command = "{ginlab} --code 5" },
            ]""")
        self.assertEqual(done.returncode, 0, done.stdout)
        steps = self.steps()
        reasons = {"gpu": "needs 99 GPUs, ", "gpus": "needs 99 GPUs, ", "tool": "no no-such-tool here", "file": "no no/such/file here",
                   "variable": "GINLAB_NO_SUCH_VARIABLE is not set", "early": "no given here", "optional": "exit code 5"}
        for name, reason in reasons.items():
            self.assertEqual(steps[name]["result"], "skipped", steps[name])
            self.assertIn(reason, steps[name]["text"])
            self.assertIn(reason, done.stdout)
        self.assertEqual((steps["giver"]["result"], steps["late"]["result"]), ("ok", "ok"), steps)

    def test_combinations_records_and_resume(self) -> None:
        table = """
            [vars]
            seeds = "1..3"
            words = ["a", "b"]
            [[group]]
            command = "{ginlab} --csv {csv} --rows put,ok,0,{=seed * 2} --code {=FAILS}"
            record = { file = "all.csv", columns = ["seed", "letter=word", "code", "rows", "wrong_bytes", "ratio=last_ratio"] }
            exit = 0
            each = { seed = "{seeds}", word = "{words}" }
            rows = [{ name = "{word}-{seed}" }]"""
        self.assertEqual(self.run_table(table.replace("FAILS", "seed == 2 and 7 or 0")).returncode, 1)
        self.assertEqual([row["result"] for row in self.steps().values()], ["ok", "ok", "failed", "failed", "ok", "ok"])
        lines = (self.folder / "out/all.csv").read_text().splitlines()
        self.assertEqual(lines[:2] + lines[3:4], ["seed,letter,code,rows,wrong_bytes,ratio", "1,a,0,1,0,2", "2,a,7,1,0,4"])
        # Only the rows that have failed run again.
        done = self.run_table(table.replace("FAILS", "0"), "--resume")
        self.assertEqual((done.returncode, done.stdout.count("== one/")), (0, 2), done.stdout)
        self.assertEqual(self.run_table(table.replace("FAILS", "1"), "--every", "99").returncode, 0)
        self.assertEqual(self.run_table(table.replace("FAILS", "1"), "--only", "/a-1$").returncode, 1)

    def test_time_and_leftover_processes_are_bounded(self) -> None:
        done = self.run_table("""
            seconds = 3
            [[group]]
            rows = [
                { name = "orphan", limit = 1, shell = "sleep 77 & echo ok" },
                { name = "long", limit = 1, shell = "sleep 60" },
                { name = "late", limit = 5, shell = "true" },
                { name = "end", finish = true, shell = "echo end", says = "end" },
            ]""")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual({name: row["result"] for name, row in self.steps().items()}, {"orphan": "ok", "long": "failed", "late": "not run", "end": "ok"})
        self.assertNotIn("sleep\0" + "77\0", "".join(path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()))

    def test_interrupted_runs_end_their_processes(self) -> None:
        for jobs in (1, 2):
            table = self.folder / "one.toml"
            table.write_text(f"""
                [[group]]
                jobs = {jobs}
                rows = [
                    {{ name = "a", limit = 60, shell = "touch {self.folder}/begun-{jobs}; sleep 7{jobs}7" }},
                    {{ name = "b", limit = 60, shell = "sleep 7{jobs}7" }},
                    {{ name = "end", finish = true, shell = "touch {self.folder}/ended-{jobs}" }},
                ]""")
            words = [sys.executable, str(MATRIX), str(table), "--out", str(self.folder / "out"), "--ginlab", str(self.program)]
            run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = time.monotonic() + 30
            while not (self.folder / f"begun-{jobs}").exists() and time.monotonic() < until:
                time.sleep(0.02)
            run.terminate()
            self.assertEqual(run.wait(30), 143)
            self.assertTrue((self.folder / f"ended-{jobs}").exists())
            commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
            self.assertNotIn(f"sleep\0007{jobs}7\0".encode(), commands)

    def test_invalid_tables_and_options_print_one_line(self) -> None:
        for table, options, text in [
            ("[[group]]\nrows = [{ name = 'a', command = 'true', limits = 3 }]", [], "unknown key limits"),
            ("[[group]]\nrows = [{ name = 'a', command = '{nothing}' }]", [], "{nothing}"),
            ("[[group]]\nrows = [{ name = 'a', command = 'true', needs = 'luck' }]", [], "unknown condition luck"),
            ("[[group]]\nrows = [{ name = 'a', command = 'true' }, { name = 'a', command = 'true' }]", [], "several rows are named a"),
            ("[[group]", [], "one.toml"),
            ("[vars]", [], "no group of rows"),
            ("[[group]]\nrows = []", ["--set", "seeds"], "expected NAME=VALUE"),
            ("[[group]]\nrows = []", ["--ginlab", "/no/such/program"], "no program /no/such/program"),
        ]:
            done = self.run_table(table, *options)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(text, done.stderr)

    def test_every_table_expands_for_any_number_of_gpus(self) -> None:
        double = self.folder / "nvidia-smi"
        # The tables of scripts/mutations.py have no groups of rows.
        tables = sorted(path.stem for path in (ROOT / "scripts/tables").glob("*.toml") if "[[group]]" in path.read_text())
        self.assertGreater(len(tables), 10)
        for gpus in ("0", "1", "4"):
            double.write_text(f"#!/bin/sh\ncase $1 in -L) for n in $(seq {gpus}); do echo \"GPU $n: \"; done ;; *) echo 0 ;; esac\n")
            double.chmod(0o755)
            path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
            done = subprocess.run([sys.executable, str(MATRIX), *tables, "--list"], capture_output=True, text=True, env=os.environ | path)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for table in tables:
                self.assertIn(f"{table}/", done.stdout)

    def test_failed_rows_are_retried_and_codes_skip(self) -> None:
        done = self.run_table(f"""
            [[group]]
            jobs = "1"
            retry = true
            skip = 77
            record = {{ file = "all.csv", columns = ["name", "status", "first_try"] }}
            rows = [
                {{ name = "once", shell = "test -e {self.folder}/once || {{{{ touch {self.folder}/once; exit 1; }}}}" }},
                {{ name = "never", shell = "echo no; exit 1" }},
                {{ name = "cannot", shell = "echo no card; exit 77" }},
            ]""")
        self.assertEqual(done.returncode, 1, done.stdout)
        lines = (self.folder / "out/all.csv").read_text().splitlines()
        failed = "failed: exit code 1 instead of 0"
        self.assertEqual(lines[1:], [f"once,ok,{failed}", f"never,{failed},{failed}", "cannot,skipped: no card,skipped: no card"])

    @unittest.skipIf(os.geteuid(), "namespaces need root")
    def test_cells_are_separate_and_report_leftovers(self) -> None:
        done = self.run_table("""
            [[group]]
            cell = true
            needs = "namespaces"
            record = { file = "all.csv", columns = ["name", "status", "leftovers"] }
            rows = [
                { name = "clean", shell = "echo x >here; ls /tmp /dev/shm /sys/class/net", not = 'gm[.]' },
                { name = "file", shell = "echo x >/tmp/file; sleep 77 & exit 5", exit = 5 },
            ]""")
        self.assertEqual(done.returncode, 1, done.stdout)
        lines = (self.folder / "out/all.csv").read_text().splitlines()
        self.assertEqual(lines[1:], ["clean,ok,", "file,failed: left: /tmp/file; process sleep 77,/tmp/file; process sleep 77"])

    def test_card_ratio_fails_beyond_its_bound(self) -> None:
        # fi_rma_bw at 64 KiB: 10465.7 MB/s (tests/fixtures/p5/fi_rma_bw.txt).
        for gbytes, wrong, sizes, code in [(10.4, 0, 1, 0), (8.8, 0, 1, 1), (12.1, 0, 1, 1), (10.4, 1, 1, 1), (10.4, 0, 2, 1)]:
            rows = self.folder / "rows.csv"
            for column in ("wrong", "wrong_bytes"):
                rows.write_text(f"case,size_bytes,rails,bandwidth_gbytes_s,{column}\ncpu-write,65536,1,{gbytes},{wrong}\nput,65536,1,1,0\n")
                words = [sys.executable, str(ROOT / "scripts/card-ratio.py"), str(rows), "--case", "cpu-write", "--sizes", str(sizes)]
                self.assertEqual(subprocess.run(words, capture_output=True).returncode, code, words)


if __name__ == "__main__":
    unittest.main()
