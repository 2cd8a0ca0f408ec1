# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed sizes through NVML: what it reports, the modes, and creating and destroying GPU instances."""

from __future__ import annotations

import pytest

from tests.unit.host.nvml_library import DO, done_by, query_gpu
from vgpuctl.errors import NvmlFailed
from vgpuctl.host.absent import AbsentNvml
from vgpuctl.host.nvml import HostNvml
from vgpuctl.host.nvml.mig import format_profile_name

ONES = tuple({"start": start, "size": 1} for start in range(7))
PROFILES = (
    {"profile_id": 0, "name": "7g.80gb", "compute_slices": 7, "memory_mib": 80384, "max_instances": 1,
     "placements": ({"start": 0, "size": 8},)},
    {"profile_id": 9, "name": "3g.40gb", "compute_slices": 3, "memory_mib": 40192, "max_instances": 2,
     "placements": ({"start": 0, "size": 4}, {"start": 4, "size": 4})},
    {"profile_id": 19, "name": "1g.10gb", "compute_slices": 1, "memory_mib": 9856, "max_instances": 7,
     "placements": ONES},
    {"profile_id": 20, "name": "1g.10gb+me", "compute_slices": 1, "memory_mib": 9856, "max_instances": 1,
     "placements": ONES},
)  # fmt: skip
INSTANCE = {"gi_id": 5, "profile_id": 9, "placement": {"start": 4, "size": 4}}
OF_MIG = ("profile", "places", "instances", "type-profile")


def changes(calls):
    return [call for call in calls if ":" in call and not call.startswith("0")]


def test_mig_profiles_have_profile_ids_and_not_nvml_indexes(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMODE=1")
    assert gpu["mig"] == {"enabled": True, "pending_enabled": True, "profiles": PROFILES, "instances": (INSTANCE,)}


def test_a_library_without_names_gets_the_same_ones(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMODE=1", "-DNO_NAMES", "-DMEMORY=81920ULL")
    assert gpu["mig"]["profiles"] == PROFILES


def test_with_mig_off_profiles_are_listed_and_no_instances(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMODE=0")
    assert gpu["mig"] == {"enabled": False, "pending_enabled": False, "profiles": PROFILES, "instances": ()}
    assert "instances" not in calls


def test_a_gpu_without_mig_gets_no_mig_call(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DPROFILE_IDS", "-DPER_GI")
    assert gpu["mig"] is None
    assert not set(calls) & set(OF_MIG)


def test_a_type_says_which_instances_it_runs_in_and_how_many_one_takes(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMODE=0", "-DPROFILE_IDS", "-DPER_GI")
    assert {n: (t["gi_profile_id"], t["max_per_gi"]) for n, t in gpu["types"].items()} == {
        468: (None, None),
        471: (19, 12),
    }


def test_how_many_an_instance_takes_may_be_missing(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMODE=0", "-DPROFILE_IDS")
    assert (gpu["types"][471]["gi_profile_id"], gpu["types"][471]["max_per_gi"]) == (19, None)


def test_unknown_instances_are_not_empty(tmp_path):
    _status, gpu, _calls = query_gpu(tmp_path, "-DMODE=1", "-DOTHERS", "-DPROFILE_IDS")
    assert gpu["mig"] is None
    assert gpu["types"][471]["gi_profile_id"] == 19


def test_a_profile_with_unknown_placements_is_omitted_but_its_instances_stay(tmp_path):
    _status, gpu, calls = query_gpu(tmp_path, "-DMODE=1", "-DNO_PLACES")
    assert gpu["mig"]["profiles"] == PROFILES[:3]
    assert calls.count("instances") == 4


@pytest.mark.parametrize("gpu_mib", [81920, 81559], ids=["80 GiB", "what an H100 tells"])
@pytest.mark.parametrize(
    ("slices", "memory_mib", "name"),
    [(1, 9856, "1g.10gb"), (1, 19968, "1g.20gb"), (2, 19968, "2g.20gb"), (3, 40192, "3g.40gb"), (7, 80384, "7g.80gb")],
)
def test_names_are_those_of_nvidia_smi(gpu_mib, slices, memory_mib, name):
    assert format_profile_name(slices, memory_mib, gpu_mib) == name


@pytest.mark.parametrize(
    ("slices", "memory_mib", "gpu_mib", "name"),
    [
        (1, 4864, 40960, "1g.5gb"),
        (3, 19968, 40960, "3g.20gb"),
        (1, 5952, 24576, "1g.6gb"),
        (4, 24125, 24576, "4g.24gb"),
        (1, 16384, 143771, "1g.18gb"),
        (3, 71424, 143771, "3g.71gb"),
        (7, 142848, 143771, "7g.141gb"),
        # What an H200 reports with driver 580.159.04: its numbers, and its own names.
        (7, 143360, 143771, "7g.141gb"),
        (4, 71424, 143771, "4g.71gb"),
        (2, 33280, 143771, "2g.35gb"),
        (1, 33280, 143771, "1g.35gb"),
        (1, 23675, 97887, "1g.24gb"),
    ],
)
def test_names_of_other_sizes(slices, memory_mib, gpu_mib, name):
    assert format_profile_name(slices, memory_mib, gpu_mib) == name
    assert format_profile_name(slices, memory_mib, gpu_mib, "+gfx") == f"{name}+gfx"


ON, STATE = "nvml.set_mig(address, enabled=True)", "(lambda m: (m.enabled, m.pending_enabled))(nvml.gpu(address).mig)"


def test_it_is_turned_on_where_the_gpu_does_that_now(tmp_path):
    text, _calls = done_by(tmp_path, ON, STATE, flags=("-DMODE=0",))
    assert text == [None, (True, True)]


@pytest.mark.parametrize("activation", [16, 19], ids=["reset required", "in use by another client"])
def test_one_that_waits_for_a_reset_is_pending_and_no_error(tmp_path, activation):
    text, calls = done_by(tmp_path, ON, STATE, flags=("-DMODE=0", f"-DACTIVATION={activation}"))
    assert text == [None, (False, True)]
    assert changes(calls) == ["set-mode:1,0,0"]


def test_one_that_nvml_takes_and_neither_does_nor_has_pending_is_a_refusal(tmp_path):
    flags = ("-DMODE=0", "-DACTIVATION=19", "-DFORGETS")
    (failure, seen), _calls = done_by(tmp_path, ON, STATE, flags=flags)
    assert (failure["nvml_code"], failure["call"]) == (19, "nvmlDeviceSetMigMode")
    assert failure["said"].startswith("NVML does not turn MIG on on 0000:3b:00.0: ")
    assert failure["said"].endswith("; nothing is pending")
    assert seen == (False, False)


def test_it_is_turned_off(tmp_path):
    text, calls = done_by(tmp_path, ON.replace("True", "False"), STATE, flags=("-DMODE=1",))
    assert text == [None, (False, False)]
    assert changes(calls) == ["set-mode:0,0,0"]


def test_a_refusal_of_the_mode_keeps_nvmls_number(tmp_path):
    (failure,), _calls = done_by(tmp_path, ON, flags=("-DMODE=0", "-DMIG_ANSWER=4"))
    assert (failure["nvml_code"], failure["call"]) == (4, "nvmlDeviceSetMigMode")


MAKE, SEE = (
    "nvml.create_gpu_instance(address, 9, 4)",
    "[(i.gi_id, str(i.placement)) for i in nvml.gpu(address).mig.instances]",
)


def test_an_instance_is_made_at_its_place_with_a_compute_instance_of_its_size(tmp_path):
    text, calls = done_by(tmp_path, MAKE, SEE, flags=("-DMODE=1",))
    assert text == [6, [(5, "4:4"), (6, "4:4")]]
    assert changes(calls) == ["make:9,4,4", "make-compute:6,3,0"]


def test_a_place_that_the_profile_does_not_have_is_not_tried(tmp_path):
    (failure,), calls = done_by(tmp_path, "nvml.create_gpu_instance(address, 9, 2)", flags=("-DMODE=1",))
    assert failure["said"].endswith("that profile's placements are 0:4, 4:4")
    assert failure["nvml_code"] == 2
    assert changes(calls) == []


def test_a_profile_that_the_gpu_does_not_have_is_not_made(tmp_path):
    (failure,), calls = done_by(tmp_path, "nvml.create_gpu_instance(address, 99, 0)", flags=("-DMODE=1",))
    assert failure["nvml_code"] == 2
    assert changes(calls) == []


def test_one_without_its_compute_instance_is_destroyed_again(tmp_path):
    (failure, seen), calls = done_by(tmp_path, MAKE, SEE, flags=("-DMODE=1", "-DMAKE_COMPUTE=23"))
    assert (failure["nvml_code"], failure["call"]) == (23, "nvmlGpuInstanceCreateComputeInstance")
    assert seen == [(5, "4:4")]
    assert changes(calls) == ["make:9,4,4", "make-compute:6,3,0", "destroy:6,0,0"]


def test_a_failed_rollback_reports_the_instance(tmp_path):
    flags = ("-DMODE=1", "-DMAKE_COMPUTE=23", "-DDESTROY=19")
    (failure, seen), _calls = done_by(tmp_path, MAKE, SEE, flags=flags)
    assert "the GPU instance is left" in failure["said"]
    assert seen == [(5, "4:4"), (6, "4:4")]


def test_its_compute_instances_are_destroyed_before_an_instance(tmp_path):
    text, calls = done_by(tmp_path, "nvml.destroy_gpu_instance(address, 5)", SEE, flags=("-DMODE=1",))
    assert text == [None, []]
    assert changes(calls) == ["destroy-compute:5,0,0", "destroy:5,0,0"]


def test_one_in_use_keeps_its_compute_instance(tmp_path):
    (failure,), calls = done_by(tmp_path, "nvml.destroy_gpu_instance(address, 5)", flags=("-DMODE=1", "-DDESTROY=19"))
    assert (failure["nvml_code"], failure["call"]) == (19, "nvmlGpuInstanceDestroy")
    assert failure["said"].startswith("NVML does not destroy GPU instance 5 of 0000:3b:00.0: ")
    assert changes(calls) == ["destroy-compute:5,0,0", "destroy:5,0,0", "make-compute:5,3,0"]


def test_an_instance_that_is_not_there_is_not_destroyed(tmp_path):
    (failure,), _calls = done_by(tmp_path, "nvml.destroy_gpu_instance(address, 7)", flags=("-DMODE=1",))
    assert failure["nvml_code"] == 6


def test_a_library_without_mig_says_nothing_and_changes_nothing(tmp_path):
    words = ("nvml.gpu(address).mig", ON, MAKE, "nvml.destroy_gpu_instance(address, 5)")
    (mig, *failures), _calls = done_by(tmp_path, *words)
    assert mig is None
    assert {failure["nvml_code"] for failure in failures} == {None}
    assert all("does not have that function" in failure["said"] for failure in failures)


def test_absent_nvml_refuses_each_change():
    def load():
        raise ModuleNotFoundError("No module named 'pynvml'")

    for nvml in (AbsentNvml("--root"), HostNvml(load)):
        for change in (
            lambda n: n.set_mig("0000:3b:00.0", enabled=True),
            lambda n: n.create_gpu_instance("0000:3b:00.0", 9, 0),
            lambda n: n.destroy_gpu_instance("0000:3b:00.0", 1),
            lambda n: n.set_mixed_size("0000:3b:00.0", enabled=False),
        ):
            with pytest.raises(NvmlFailed) as raised:
                change(nvml)
            assert raised.value.facts["nvml_code"] is None


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
