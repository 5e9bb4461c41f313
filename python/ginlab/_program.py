"""The program `ginlab` of this package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from ginlab._rows import Rows

VARIABLE = "GINLAB_PROGRAM"
"""Environment variable with the path of another program, such as that of a checkout."""
TIMED_OUT = 124
"""Exit code of a run that exceeded its limit, as of the program itself."""


class Error(Exception):
    """A run has failed.

    `str(error)` is the program's message on one line. `exit_code` is the program's: 1 run failed or wrong data, 2
    invalid options, 3 machine not ready, 124 timed out, 130 interrupted. `rows` has the rows written before the failure.
    """

    def __init__(self, message: str, exit_code: int, rows: Optional["Rows"] = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.rows = rows


def program() -> Path:
    """Returns the path of the program: that of `GINLAB_PROGRAM`, or else that of this package.

    Raises:
        Error: there is no such program.
    """
    other = os.environ.get(VARIABLE)
    path = Path(other) if other else Path(__file__).parent / "bin" / "ginlab"
    if not os.access(path, os.X_OK):
        raise Error(f"no program {path}: install the wheel with pip, or set {VARIABLE} to a built ginlab", 2)
    return path


def version() -> str:
    """Returns the version of the installed package, or `0+unknown` outside an installation."""
    try:
        return metadata.version("ginlab")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def message(stderr: str, code: int) -> str:
    """Returns the program's message: its last line that starts with `ginlab: ` or `error: `, without the prefix."""
    for line in reversed(stderr.splitlines()):
        for prefix in ("ginlab: ", "error: "):
            if line.startswith(prefix):
                return line[len(prefix) :]
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("#")]
    return lines[-1].strip() if lines else f"ended with exit code {code} and no message"


def output(words: Sequence[str], timeout: Optional[float] = None) -> Tuple[str, str, int]:
    """Runs the program. Returns its standard output, its standard error and its exit code.

    If `timeout` seconds pass, or on Ctrl-C, the program gets SIGTERM, on which it ends its ranks, and after ten more
    seconds SIGKILL.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [str(program()), *map(str, words)]
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as child:  # type: ignore[call-overload]
        try:
            stdout, stderr = child.communicate(timeout=timeout)
            return stdout, stderr, ended(child.returncode)
        except subprocess.TimeoutExpired:
            stdout, stderr = end(child)
            return stdout, f"{stderr}\nginlab: no result within {timeout:g} s", TIMED_OUT
        except BaseException:
            end(child)
            raise


def end(child: "subprocess.Popen[str]") -> Tuple[str, str]:
    """Ends a program. Returns what it has written."""
    child.send_signal(signal.SIGTERM)
    try:
        return child.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()


def ended(code: int) -> int:
    """Returns the exit code as a shell reports it: 128 plus the number of the signal that ended the program."""
    return code if code >= 0 else 128 - code


def main() -> NoReturn:
    """Replaces this process by the program: the command `ginlab`."""
    try:
        path = program()
    except Error as error:
        sys.exit(f"ginlab: {error}")
    os.execv(path, ["ginlab", *sys.argv[1:]])
