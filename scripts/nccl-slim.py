#!/usr/bin/env python3
"""Zeroes a library's device code for other GPUs, so that a compressed copy of NCCL has tens of megabytes instead of hundreds.

    scripts/nccl-slim.py libnccl.so.2 slim/libnccl.so.2 --keep 90      then: strip -g slim/libnccl.so.2 && xz -T0 slim/libnccl.so.2

Of NCCL 2.32.3 for sm_90, 34 MB remain, and 44 MB without strip.

Host code, the selected images and the file's layout are unchanged. The driver does not find a zeroed image and reports "no kernel image is
available". A section of CUDA's fat binaries has a header (magic 0xba55ed50, its size, the size of the rest), then entries, each with a
header (kind, size of the header, size of the payload; the architecture at byte 28) and its payload.
"""
import argparse
import mmap
import shutil
import struct
import sys

MAGIC = 0xBA55ED50
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


def sections(data):
    """Yields offset and size of the sections with fat binaries in a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        sys.exit("nccl-slim.py: not a 64-bit ELF file")
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        end = data.find(b"\0", strings + name)
        if data[strings + name : end] in SECTIONS:
            yield offset, length


def slim(data, keep):
    """Zeroes images. Returns the number of bytes zeroed and kept, by architecture."""
    zeroed, kept = {}, {}
    for start, length in sections(data):
        at, end = start, start + length
        while at + 16 <= end:
            magic, _, header, payload = struct.unpack_from("<IHHQ", data, at)
            if magic != MAGIC:
                at += 8
                continue
            entry, last = at + header, at + header + payload
            while entry < last:
                _, _, entry_header, bytes_ = struct.unpack_from("<HHIQ", data, entry)
                arch, = struct.unpack_from("<I", data, entry + 28)
                where = kept if arch in keep else zeroed
                where[arch] = where.get(arch, 0) + bytes_
                if arch not in keep:
                    data[entry + entry_header : entry + entry_header + bytes_] = bytes(bytes_)
                entry += entry_header + bytes_
            at = last
    return zeroed, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--keep", type=int, action="append", required=True, metavar="ARCH", help="architecture to keep, e.g. 90 for sm_90; can be repeated")
    args = parser.parse_args()
    shutil.copyfile(args.source, args.target)
    with open(args.target, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        zeroed, kept = slim(data, set(args.keep))
        data.flush()
    if not kept:
        sys.exit(f"nccl-slim.py: no device code for {args.keep}; found {sorted(zeroed)}")
    print(f"zeroed {sum(zeroed.values()) >> 20} MiB of {sorted(zeroed)}, kept {sum(kept.values()) >> 20} MiB of {sorted(kept)}")


main()
