#!/usr/bin/env python3
"""Zeroes the device code of other architectures than sm_90 in a library, which then compresses well.

    gpu_fatbin.py LIBRARY

Keeps the file's size, and in each container of .nv_fatbin the sm_90 code; where there is none, the newest PTX up to it.
"""
import pathlib
import struct
import sys

MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"  # of a container, with its version and header size
PTX, ELF, KINDS = 1, 2, (1, 2, 16, 64)


def entries(data, at, end):
    """(kind, architecture, offset, bytes) of a container's parts."""
    while at < end:
        kind, _, head, size = struct.unpack_from("<HHIQ", data, at)
        if kind not in KINDS or head > 4096 or at + head + size > len(data):
            return
        yield kind, struct.unpack_from("<I", data, at + 28)[0], at + head, size
        at += head + size


def main():
    path = pathlib.Path(sys.argv[1])
    data, at, zeroed = bytearray(path.read_bytes()), 0, 0
    while (at := data.find(MAGIC, at)) >= 0:
        end = at + 16 + struct.unpack_from("<Q", data, at + 8)[0]
        if end > len(data):
            at += 8
            continue
        parts = list(entries(data, at + 16, end))
        keep = {(ELF, 90)}
        if not any(p[:2] == (ELF, 90) for p in parts):
            keep = {(PTX, max((arch for kind, arch, _, _ in parts if kind == PTX and arch <= 90), default=0))}
        for kind, arch, offset, size in parts:
            if (kind, arch) not in keep:
                data[offset : offset + size] = bytes(size)
                zeroed += size
        at = end
    path.write_bytes(data)
    print(f"{path.name}: {zeroed / 2**20:.1f} MiB zeroed")


if __name__ == "__main__":
    main()
