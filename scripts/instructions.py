#!/usr/bin/env python3
"""Appends instructions per post, by library, to a CSV file: the output of callgrind for examples/post_cost.

    scripts/instructions.py CALLGRIND.OUT CSV FABRIC CHAIN POSTS
"""

import re
import subprocess
import sys
from pathlib import Path

# The software NIC is a file without a name; functions without an object belong to the program.
LIBRARIES = {"libfabric": r"^(libfabric\.so|libefa-fi\.)", "card": r"^\?\?\?$", "C library": r"^(libc\.|ld-linux|libpthread|libm\.)", "ginlab": ""}


def main():
    path, table, fabric, chain, posts = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    words = ["callgrind_annotate", "--auto=no", "--threshold=100", path]
    counts = dict.fromkeys(LIBRARIES, 0)
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
        # 1,234 (5.6%)  file:function [object]
        count = re.match(r" *([0-9,]+) ", line)
        if count and "PROGRAM TOTALS" not in line:
            named = re.search(r"\[([^]]*)\]$", line)
            name = named[1].rsplit("/", 1)[-1] if named else "program"
            counts[next(key for key, of in LIBRARIES.items() if re.search(of, name))] += int(count[1].replace(",", ""))
    if not table.exists():
        table.write_text("fabric,chain,libfabric,card,C library,ginlab,in all\n")
    with table.open("a") as file:
        file.write(",".join([fabric, chain, *(str(round(count / int(posts))) for count in [*counts.values(), sum(counts.values())])]) + "\n")


if __name__ == "__main__":
    main()
