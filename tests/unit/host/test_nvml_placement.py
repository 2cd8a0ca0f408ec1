# SPDX-License-Identifier: Apache-2.0
"""Mixed size (heterogeneous mode) in NVML: the mode, and the placement ids of each type."""

import pytest

from tests.unit.host.nvml_library import DO, done_by, query_gpu

SWAPPED = (
    """
import ctypes, pynvml
class Swapped(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("placementSize", ctypes.c_uint),
                ("placementIds", ctypes.POINTER(ctypes.c_uint))]
pynvml.c_nvmlVgpuPlacementList_v1_t = Swapped
"""
    + DO
)


def places(gpu):
    return {number: (kind["placement_ids"], kind["placement_size"]) for number, kind in gpu["types"].items()}


def test_with_mixed_size_each_type_has_its_places(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMIXED=1")
    assert gpu["mixed_size"] is True
    assert places(gpu) == {468: ((0, 8, 12, 20), 4), 471: ((0, 20), 20)}
    assert calls.count("places-1") == 0


@pytest.mark.parametrize("program", [DO, SWAPPED], ids=["today's pynvml", "pynvml 13.590 and before"])
def test_the_first_version_of_the_list_does_too(tmp_path, program):
    flags = ("-DMIXED=1", "-DFIRST_LIST")
    (gpu,), calls = done_by(tmp_path, "nvml.gpu(address)", flags=flags, program=program)
    assert places(gpu) == {468: ((0, 8, 12, 20), 4), 471: ((0, 20), 20)}
    assert calls.count("places-1") == 2


def test_no_placement_call_without_mixed(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMIXED=0")
    assert gpu["mixed_size"] is False
    assert places(gpu) == {468: (None, None), 471: (None, None)}
    assert calls == ["init", "00000000:3B:00.0", "mixed?", "shutdown", "init", "shutdown"]


def test_placement_ids_are_listed_in_equal_size_mode(tmp_path):
    (reported, none), calls = done_by(
        tmp_path,
        "[[n, [str(s) for s in p]] for n, p in nvml.placements(address).items()]",
        "dict(nvml.placements('0000:99:00.0'))",
        flags=("-DMIXED=0",),
    )
    assert reported == [[468, ["0:4", "8:4", "12:4", "20:4"]], [471, ["0:20", "20:20"]]]
    assert (none, calls.count("places-2")) == ({}, 2)


def test_a_library_without_placements_tells_none(tmp_path):
    (reported,), _calls = done_by(tmp_path, "dict(nvml.placements(address))")
    assert reported == {}


def test_a_mig_backed_type_has_no_places(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMIXED=1", "-DMODE=0", "-DPROFILE_IDS")
    assert places(gpu) == {468: ((0, 8, 12, 20), 4), 471: (None, None)}


def test_a_gpu_that_has_no_such_mode_does_not_say(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMIXED=2")
    assert gpu["mixed_size"] is None
    assert "places-2" not in calls


def test_a_plain_driver_is_not_queried(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMIXED=1", "-DDATACENTRE")
    assert gpu["mixed_size"] is None
    assert "mixed?" not in calls


def test_it_is_turned_on_and_off(tmp_path):
    words = ["nvml.set_mixed_size(address, enabled=True)", "nvml.gpu(address).mixed_size"]
    words += ["nvml.set_mixed_size(address, enabled=False)", "nvml.gpu(address).mixed_size"]
    text, calls = done_by(tmp_path, *words, flags=("-DMIXED=0",))
    assert text == [None, True, None, False]
    assert [call for call in calls if call.startswith("mixed:")] == ["mixed:1", "mixed:0"]


@pytest.mark.parametrize("number", [3, 19])
def test_a_refusal_keeps_nvmls_number(tmp_path, number):
    words = "nvml.set_mixed_size(address, enabled=True)"
    (failure,), _calls = done_by(tmp_path, words, flags=("-DMIXED=0", f"-DMIXED_ANSWER={number}"))
    assert (failure["nvml_code"], failure["call"]) == (number, "nvmlDeviceSetVgpuHeterogeneousMode")
    assert failure["said"].startswith("NVML does not turn mixed size on on 0000:3b:00.0: ")


def test_a_library_without_it_says_so(tmp_path):
    (failure,), _calls = done_by(tmp_path, "nvml.set_mixed_size(address, enabled=True)")
    assert failure["nvml_code"] is None
    assert "does not have that function" in failure["said"]
