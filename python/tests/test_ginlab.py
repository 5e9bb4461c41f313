"""Tests of the Python package, over a built program: GINLAB_PROGRAM names it. Need only Python.

    GINLAB_PROGRAM=target/debug/ginlab python3 -m unittest discover -s python/tests
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))

import ginlab  # noqa: E402
from ginlab import _program  # noqa: E402

PROXY = "proxy -d emulated -p null --cases put -b 64 -e 64 -n 4 -w 0 -r 2 --mode nbi".split()


class Runs(unittest.TestCase):
    def test_rows_are_typed_and_have_the_header(self) -> None:
        rows = ginlab.run(PROXY)
        self.assertEqual([(row["case"], row["size_bytes"], row["wrong_bytes"]) for row in rows][-1], ("put", 64, 0))
        row = rows[-1]
        self.assertIsInstance(row["time_us_p50"], float)
        self.assertIs(row["fill"], True)
        self.assertIsNone(row["time_us_p99"])
        self.assertEqual(len(row["samples_us"]), 2)  # type: ignore[arg-type]
        self.assertEqual((rows.header["provider"], rows.complete), ("null", True))

    def test_wrong_data_is_an_error_with_the_rows(self) -> None:
        with self.assertRaisesRegex(ginlab.Error, r"^verification failed: 1 wrong bytes in nbi of 64 B") as caught:
            ginlab.run([*PROXY, "--window", "4", "--fault", "corrupt=3"])
        self.assertEqual(caught.exception.exit_code, 1)
        assert caught.exception.rows is not None
        self.assertEqual(caught.exception.rows[-1]["wrong_bytes"], 1)

    def test_invalid_calls_say_what_to_use(self) -> None:
        for words, text in [
            (["proxy", "-p", "null", "--np", "x"], "--np"),
            (["proxyy"], "proxy"),
            (["model", "--json"], "unexpected|unrecognized|--json"),
            ("proxy -p null", r"use \['proxy', '-p', 'null'\]"),
        ]:
            with self.assertRaisesRegex(ginlab.Error, text) as caught:
                ginlab.run(words)
            self.assertEqual((caught.exception.exit_code, len(str(caught.exception).splitlines())), (2, 1), words)

    def test_a_run_ends_at_its_limit(self) -> None:
        with self.assertRaisesRegex(ginlab.Error, "no result within 0.01 s") as caught:
            # The emulated device runs a million puts in seconds.
            ginlab.run("proxy -d emulated -p null -b 64 -e 64 -n 1000000".split(), timeout=0.01)
        self.assertEqual(caught.exception.exit_code, 124)

    def test_options_after_the_separator_belong_to_the_other_command(self) -> None:
        line = [*PROXY, "--seed", "{seed}"]
        rows = ginlab.run(["soak", "--seeds", "2", "--", *line])
        self.assertEqual((len(rows), rows[0]["seeds"], rows[0]["failed_seeds"]), (1, 2, 0))


class Environments(unittest.TestCase):
    def test_plugin_environment_is_that_of_the_command(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            plugin = Path(folder) / "libnccl of 'me'.so"
            plugin.write_bytes(b"")
            with mock.patch.dict(os.environ, {"GINLAB_NCCL_PLUGIN": str(plugin), "NCCL_NVLS_ENABLE": "1"}):
                self.assertEqual(ginlab.nccl_plugin_path(), plugin)
                found = ginlab.nccl_env("-p", "worst:seed=7", "--rails", "4")
        expected = {"NCCL_RMA_PLUGIN": str(plugin), "GINLAB_RAILS": "worst:seed=7", "GINLAB_RAIL_COUNT": "4"}
        self.assertEqual({name: found[name] for name in expected}, expected)
        self.assertIn(str(plugin), found["LD_PRELOAD"])
        # Variables of the user are kept.
        self.assertNotIn("NCCL_NVLS_ENABLE", found)
        with self.assertRaisesRegex(ginlab.Error, "--provider: null moves no bytes"):
            ginlab.nccl_env("-p", "null")

    def test_devices_are_described(self) -> None:
        found = ginlab.soft_efa_env("soft-efa:p4d,cards=2,seed=7")
        self.assertIn("cards=2 seed=7", found["SOFT_EFA"])
        self.assertIn("libsoft_efa.so", found["LD_PRELOAD"])
        self.assertLessEqual(set(found), {"SOFT_EFA", "LD_PRELOAD", "FI_EFA_ENABLE_SHM_TRANSFER"})
        with self.assertRaisesRegex(ginlab.Error, "expected one of soft-efa:p4d"):
            ginlab.soft_efa_env("soft-efa:p3")


class Pages(unittest.TestCase):
    def test_first_example_of_the_page_runs(self) -> None:
        page = (ROOT / "docs" / "python.md").read_text()
        example = page.split("```python\n")[1].split("```")[0]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example, "docs/python.md", "exec"), {})
        self.assertRegex(printed.getvalue(), r"^signal-order \w+ 0 ok\n")

    def test_script_of_the_action_writes_junit(self) -> None:
        action = (ROOT / ".github" / "actions" / "seeds" / "action.yml").read_text()
        script = textwrap.dedent(action.split("run: |\n")[1])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "ginlab").symlink_to(ginlab.program())
            file = Path(folder) / "seeds.xml"
            inputs = {"COMMAND": "/usr/bin/test {seed} != 2", "SEEDS": "3", "FIRST": "1", "LIMIT": "60"}
            inputs["JUNIT"] = str(file)
            variables = {**os.environ, **inputs, "PATH": f"{folder}:{os.environ['PATH']}"}
            # As GitHub runs a step of a composite action.
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
            done = subprocess.run(command, env=variables, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            suite = ElementTree.parse(file).getroot().find("testsuite")
        assert suite is not None
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("3", "1"))
        failed = [case.get("name") for case in suite if case.find("failure") is not None]
        self.assertEqual(failed, ["seed 2"])


class Program(unittest.TestCase):
    def test_messages_are_one_line(self) -> None:
        self.assertEqual(_program.message("# note\nginlab: rank 1: lost\n# end\n", 1), "rank 1: lost")
        usage = "error: unexpected argument '-x' found\n\nUsage: x\n"
        self.assertEqual(_program.message(usage, 2), "unexpected argument '-x' found")
        self.assertEqual(_program.message("# note\n", 139), "ended with exit code 139 and no message")

    def test_an_absent_program_is_named(self) -> None:
        with mock.patch.dict(os.environ, {"GINLAB_PROGRAM": "/no/ginlab"}):
            with self.assertRaisesRegex(ginlab.Error, "no program /no/ginlab: install the wheel"):
                ginlab.program()


class Wheel(unittest.TestCase):
    def test_files_and_record(self) -> None:
        spec = importlib.util.spec_from_file_location("wheel", ROOT / "scripts" / "wheel.py")
        assert spec is not None and spec.loader is not None
        wheel = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(wheel)
        with tempfile.TemporaryDirectory() as folder:
            for name in wheel.PROGRAMS:
                (Path(folder) / name).write_bytes(name.encode())
            files = wheel.contents(Path(folder), "1.2", "py3-none-manylinux_2_34_x86_64")
        modes = {name: mode for name, (_, mode) in files.items()}
        self.assertEqual(modes["ginlab/bin/ginlab"], 0o755)
        self.assertIn("ginlab/py.typed", modes)
        info = "ginlab-1.2.dist-info"
        self.assertIn(b"Tag: py3-none-manylinux_2_34_x86_64\n", files[f"{info}/WHEEL"][0])
        self.assertIn(b"ginlab = ginlab._program:main", files[f"{info}/entry_points.txt"][0])
        record = files[f"{info}/RECORD"][0].decode().splitlines()
        self.assertEqual([line.split(",")[0] for line in record], list(modes))
        # python3 -c 'import base64,hashlib; print(base64.urlsafe_b64encode(hashlib.sha256(b"ginlab").digest()))'
        self.assertIn("ginlab/bin/ginlab,sha256=Yk-BQcDFtwTKhBEqMw_coDPr24DZmS4a73DBf1f8yKU,6", record)


if __name__ == "__main__":
    unittest.main()
