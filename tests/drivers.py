# SPDX-License-Identifier: Apache-2.0
"""Files that look like NVIDIA's drivers for guests, for tests."""

from __future__ import annotations

from pathlib import Path

from vgpuctl.config.guest_drivers import MIN_BYTES

BEGINNINGS = {
    "run": b"#!/bin/sh\n",
    "deb": b"!<arch>\ndebian-binary   ",
    "rpm": b"\xed\xab\xee\xdb",
    "exe": b"MZ\x90\0",
}


def run_name(version: str, build: str = "-grid") -> str:
    """Return the name of NVIDIA's installer of this version."""
    return f"NVIDIA-Linux-x86_64-{version}{build}.run"


def exe_name(version: str) -> str:
    """Return the name of NVIDIA's installer for Windows of this version."""
    return f"{version}_grid_win10_win11_server2022_server2025_dch_64bit_international.exe"


def put_driver(directory: Path, name: str, *, text: bytes = b"exit 0\n") -> Path:
    """Write a driver's file of this name; `text`: what follows its beginning."""
    path = directory / name
    path.write_bytes((BEGINNINGS.get(name.rpartition(".")[2], b"") + text).ljust(MIN_BYTES, b"\n"))
    return path
