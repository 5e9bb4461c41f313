#!/usr/bin/env python3
"""Packs the Python package and the built programs into a wheel. Called by scripts/dist.sh; needs only Python.

    scripts/wheel.py --programs DIR --glibc 2.34 [--out DIR]

DIR has `ginlab`, `libnccl_ginlab.so` and `libsoft_efa.so`. `--glibc` is the newest glibc version that they need: it
decides the tag of the wheel (manylinux). The same inputs result in the same bytes. Exit codes: 0 ok, 1 too large, 2 usage.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import platform
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ["ginlab", "libnccl_ginlab.so", "libsoft_efa.so"]
LIMIT = 20 << 20
"""Maximum size of a wheel in bytes."""

METADATA = """\
Metadata-Version: 2.1
Name: ginlab
Version: {version}
Summary: {summary}
License: MIT OR Apache-2.0
Requires-Python: >=3.10
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{text}"""


def field(name: str) -> str:
    """Returns a field of the workspace's manifest, such as its version."""
    found = re.search(rf'^{name} = "([^"]*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"wheel.py: no {name} in Cargo.toml")
    return found.group(1)


def contents(programs: Path, version: str, tag: str) -> dict[str, tuple[bytes, int]]:
    """Returns the files of the wheel, each with its mode."""
    info = f"ginlab-{version}.dist-info"
    files: dict[str, tuple[bytes, int]] = {}
    for file in sorted((ROOT / "python" / "ginlab").iterdir()):
        if file.suffix == ".py" or file.name == "py.typed":
            files[f"ginlab/{file.name}"] = (file.read_bytes(), 0o644)
    for name in PROGRAMS:
        file = programs / name
        if not file.is_file():
            print(f"wheel.py: no {file}: build it with scripts/build.sh", file=sys.stderr)
            sys.exit(2)
        files[f"ginlab/bin/{name}"] = (file.read_bytes(), 0o755)
    text = (ROOT / "docs" / "python.md").read_text()
    about = METADATA.format(version=version, summary=field("description"), text=text)
    wheel = f"Wheel-Version: 1.0\nGenerator: ginlab\nRoot-Is-Purelib: false\nTag: {tag}\n"
    scripts = "[console_scripts]\nginlab = ginlab._program:main\n"
    for name, lines in [("METADATA", about), ("WHEEL", wheel), ("entry_points.txt", scripts)]:
        files[f"{info}/{name}"] = (lines.encode(), 0o644)
    for name in ["LICENSE-APACHE", "LICENSE-MIT"]:
        files[f"{info}/licenses/{name}"] = ((ROOT / name).read_bytes(), 0o644)
    entries = []
    for name, (body, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        entries.append(f"{name},sha256={digest},{len(body)}\n")
    record = f"{info}/RECORD"
    files[record] = ("".join([*entries, f"{record},,\n"]).encode(), 0o644)
    return files


def main() -> None:
    """Writes the wheel and prints its path and sizes."""
    parser = argparse.ArgumentParser(prog="wheel.py", description="Packs the Python package and the built programs.")
    parser.add_argument("--programs", type=Path, required=True, help="directory of the built programs")
    parser.add_argument("--glibc", required=True, help="newest glibc version that the programs need, such as 2.34")
    parser.add_argument("--out", type=Path, default=Path("."), help="directory of the wheel")
    args = parser.parse_args()
    if not re.fullmatch(r"2\.\d+", args.glibc):
        parser.error(f"--glibc {args.glibc!r}: expected a version such as 2.34")
    version = field("version")
    tag = f"py3-none-manylinux_{args.glibc.replace('.', '_')}_{platform.machine()}"
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"ginlab-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (body, mode) in contents(args.programs, version, tag).items():
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, body)
            if mode == 0o755:
                print(f"{name}: {len(body)} bytes, {wheel.getinfo(name).compress_size} packed")
    size = path.stat().st_size
    print(f"{path}: {size} bytes")
    if size > LIMIT:
        sys.exit(f"wheel.py: {path} has {size} bytes, more than {LIMIT}")


if __name__ == "__main__":
    main()
