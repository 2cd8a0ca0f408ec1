# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of the move of a vGPU, through the real pynvml and a library with nvml.h's layouts."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from tests.unit.host.nvml_library import ADDRESS, done_by
from vgpuctl.host.absent import AbsentNvml

HEAD, OPAQUE = 208, 300
ASK = "nvml.migration(address)"
RUNNING = ("-DMOVES=8", "-DGUESTS=2")


def description(size: int = OPAQUE, length: int = OPAQUE) -> str:
    """Return what a host describes; `size`: how many opaque bytes it says it has."""
    return b64encode(bytes(HEAD - 4) + size.to_bytes(4, "little") + b"A" * length).decode()


def test_speeds_and_each_running_vgpu(tmp_path):
    (result,), _calls = done_by(tmp_path, ASK, flags=RUNNING)
    assert (result["read_mb_per_second"], result["write_mb_per_second"], result["streams"]) == (5800, None, True)
    first, second = result["vgpus"]
    assert (first["mdev_uuid"], second["mdev_uuid"]) == ("bbbbbbbb-0000-4000-8000-000000000001", None)
    assert (first["type_id"], first["state_bytes"]) == (468, 5 << 30)
    assert b64decode(first["metadata"])[HEAD:] == b"A" * OPAQUE, "more than pynvml's structure has room for"


def test_a_library_without_the_calls_leaves_their_values_out(tmp_path):
    (result,), _calls = done_by(tmp_path, ASK, flags=(*RUNNING, "-DOLD"))
    assert result is None, "this build lacks a function that vgpuctl always needs"
    (result,), _calls = done_by(tmp_path, ASK, flags=("-DGUESTS=1",))
    values = (result["read_mb_per_second"], result["streams"], *list(result["vgpus"][0].values())[1:])
    assert set(values) == {None}


@pytest.mark.parametrize(
    ("answer", "live", "saved", "limits"),
    [
        (0x8, True, False, ()),
        (0xA, True, True, ()),
        (0x102, False, True, ("host-driver",)),
        (0x600, False, False, ("guest-driver", "gpu")),
        (0x80000000, False, False, ("other",)),
    ],
)
def test_whether_a_gpu_takes_it(tmp_path, answer, live, saved, limits):
    flags = (f"-DMOVES={answer:#x}ULL", "-DGUESTS=0")
    (result,), _calls = done_by(tmp_path, f"nvml.pairing(address, {description()!r})", flags=flags)
    assert result == {"live": live, "saved": saved, "limits": limits}


@pytest.mark.parametrize(
    "text",
    ["", "?", b64encode(b"short").decode(), description(length=OPAQUE - 1), description(size=0xFFFFFFFF), "A" * 90_000],
)
def test_a_description_that_is_none_never_gets_to_the_library(tmp_path, text):
    (result,), _calls = done_by(tmp_path, f"nvml.pairing(address, {text!r})", flags=("-DMOVES=8", "-DGUESTS=0"))
    assert result is None


def test_without_nvml_nothing_is_known():
    assert AbsentNvml("--root").migration(ADDRESS) is None
    assert AbsentNvml("--root").pairing(ADDRESS, description()) is None
