#!/usr/bin/env python3
"""Packs a directory of results in the format of data/: headers merged, bulky files compressed.

    scripts/pack-results.py DIR [TARGET]      TARGET: output directory [default: DIR]

CSV files, README.md and text files are kept unchanged. In addition:
  headers.json      one header for all files: "common" has the most frequent value of each key, "files" what differs in each CSV file, and its
                    command; null if a file has no such key (see host/report/headers.rs)
  samples.tar.xz    JSON documents of the rows, with the raw samples, and the log with all printed tables
  steps.txt         the steps in log.txt, each with its command and result
Perfetto traces are omitted: they cover one repeat, are large, and the command can recreate them. Exit codes: 0 ok, 2 usage or already packed.
"""

import json
import re
import shutil
import sys
import tarfile
from collections import Counter
from pathlib import Path


def merged(headers):
    """Returns one document for these headers, by file."""
    found = {key: Counter(json.dumps(header[key]) for header in headers.values() if key in header) for header in headers.values() for key in header}
    # A key of few files is written with those files; the command always is.
    most = {key: values.most_common(1)[0] for key, values in found.items() if key != "command"}
    common = {key: json.loads(value) for key, (value, times) in most.items() if 2 * times >= len(headers)}
    own = lambda header: {key: header.get(key) for key in found if header.get(key) != common.get(key)}
    return {"common": common, "files": {name: own(header) for name, header in headers.items()}}


def anonymous(entry):
    """Removes what differs between two archives of the same files."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main():
    if len(sys.argv) not in (2, 3) or not Path(sys.argv[1]).is_dir():
        sys.exit(print("usage: scripts/pack-results.py DIR [TARGET], where DIR has CSV files of ginlab", file=sys.stderr) or 2)
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[-1]).resolve()
    if (target / "headers.json").exists():
        sys.exit(print(f"pack-results.py: {target} is already packed; use a new directory for each run", file=sys.stderr) or 2)
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    documents = {path: json.loads(path.read_text()) for path in files if path.suffix == ".json"}
    tables = [path for path in files if path.suffix == ".csv"]
    # Lists (efa, affinity, bootstrap) have their header only in the JSON document.
    sources = {path: documents.get(path.with_suffix(".header.json")) or documents.get(path.with_suffix(".json"), {}).get("header") for path in tables}
    headers = {str(path.relative_to(source)): {key: value for key, value in header.items() if value not in (None, [])} for path, header in sources.items() if header}
    logs = [path for path in files if path.name in ("log.txt", "tables.txt")]
    samples = logs + [path for path, document in documents.items() if "header" in document]
    texts = [path for path in files if path.suffix in (".txt", ".md") and path not in logs]
    if headers:
        (target / "headers.json").write_text(json.dumps(merged(headers), indent=1) + "\n")
    if samples:
        with tarfile.open(target / "samples.tar.xz", "w:xz", preset=9) as archive:
            for path in samples:
                archive.add(path, path.relative_to(source), filter=anonymous)
    if (source / "log.txt").exists():
        steps = re.findall(r"^(?:== |   (?:ok|FAILED|skipped|not run)).*\n", (source / "log.txt").read_text(), re.M)
        (target / "steps.txt").write_text("".join(steps))
    for path in tables + texts if source != target else []:
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.relative_to(source))
    for path in [*documents, *logs] if source == target else []:
        path.unlink()
    print(f"{target}: {len(tables)} CSV files, {len(headers)} headers in one, {len(samples)} documents and logs compressed")


if __name__ == "__main__":
    main()
