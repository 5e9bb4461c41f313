"""Runs experiments and returns their rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Union

from ginlab._program import Error, message, output

if TYPE_CHECKING:
    import pandas
    import pyarrow

Value = Union[str, int, float, bool, None, List[float]]
"""Value of a column. `None`: the column does not apply. `samples_us` is the list of raw samples."""
Row = Dict[str, Value]
"""A row: names of columns, as in CSV files, and typed values."""


class Rows(List[Row]):
    """The rows of a run, and its header.

    `header` describes versions, machine, command, provider and rails. `complete` is `False` if the run ended early.
    """

    def __init__(self, rows: Iterable[Row], header: Dict[str, Any], complete: bool = True) -> None:
        super().__init__(rows)
        self.header = header
        self.complete = complete

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the rows as a DataFrame. Requires pandas."""
        import pandas

        return pandas.DataFrame(list(self))

    def to_arrow(self) -> "pyarrow.Table":
        """Returns the rows as an Arrow table. Requires pyarrow."""
        import pyarrow

        return pyarrow.Table.from_pylist(list(self))


def parse(text: str) -> Optional[Rows]:
    """Returns the rows of a JSON document, or `None` if it is none."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    if not isinstance(document, dict) or "rows" not in document:
        return None
    return Rows(document["rows"], document.get("header", {}), bool(document.get("complete", False)))


def run(words: Sequence[str], timeout: Optional[float] = None) -> Rows:
    """Runs an experiment, such as `["proxy", "-p", "shared", "-b", "64", "-e", "64"]`, and returns its rows.

    Args:
        words: the subcommand and its options, as on the command line, without `--json` and `--csv -`.
        timeout: limit of the whole run in seconds. The experiments themselves bound every wait (`--timeout`).

    Raises:
        Error: the run has failed, data was wrong, or `words` are invalid. `error.rows` has the rows until then.
    """
    if isinstance(words, str):
        raise Error(f"run expects a list of words: use {words.split()!r}", 2)
    own = list(words)
    # Options after -- belong to another program.
    place = own.index("--") if "--" in own else len(own)
    stdout, stderr, code = output([*own[:place], "--json", "-", *own[place:]], timeout)
    rows = parse(stdout)
    if code != 0:
        raise Error(message(stderr, code), code, rows)
    if rows is None:
        raise Error(f"{' '.join(map(str, own))} returns no rows: run it as a command", 2)
    return rows
