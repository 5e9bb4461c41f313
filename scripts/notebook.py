#!/usr/bin/env python3
"""Executes the code cells of a notebook in their order, without Jupyter. Needs only Python.

    scripts/notebook.py NOTEBOOK

Each cell runs in the same namespace. The first exception ends the run and names its cell. Exit codes: 0 ok, 1 a cell has
failed, 2 usage.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path


def main() -> int:
    """Runs the cells. Returns the exit code."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print("notebook.py: expected the path of a notebook", file=sys.stderr)
        return 2
    notebook = json.loads(Path(sys.argv[1]).read_text())
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        try:
            exec(compile("".join(cell["source"]), f"<code cell {number}>", "exec"), names)
        except Exception:
            traceback.print_exc()
            print(f"notebook.py: code cell {number} of {len(cells)} has failed", file=sys.stderr)
            return 1
    print(f"{len(cells)} code cells ran")
    return 0 if cells else 1


if __name__ == "__main__":
    sys.exit(main())
