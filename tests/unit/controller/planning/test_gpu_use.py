# SPDX-License-Identifier: Apache-2.0
"""What is on each GPU of a host: its desktops, others, and reports that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rooms import counted_gpu, room_of, whole_gpu
from vgpuctl.controller.model import Desktop, DesktopReport, DesktopVgpu
from vgpuctl.controller.planning.gpu_use import MAX_OTHERS, GpuContents, gpus_of
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.model.host_room import HostRoom
from vgpuctl.value import replace

ADDRESS, OTHER = "0000:3b:00.0", "0000:5b:00.0"
A100 = EqualSizeKind("NVIDIA A100", 40960, {"A100-4C": 4096, "A100-8C": 8192}, {"A100-4C": 10, "A100-8C": 5})


def room(*vgpus: int, size: int = 4096) -> HostRoom:
    """Return the room of a host with A100s that have so many vGPUs."""
    result = room_of(*((A100, (size, count) if count else A100.empty) for count in vgpus))
    gpus = zip(result.gpus, (ADDRESS, OTHER), vgpus, strict=False)
    return replace(result, gpus=tuple(replace(gpu, address=at, vgpus=count) for gpu, at, count in gpus))


def desktop(name: str, *vgpus: DesktopVgpu) -> Desktop:
    report = DesktopReport(True, state="running", vgpus=vgpus)
    return Desktop(f"id-{name}", "pool-1", name, "52:54:00:00:00:01", "image-1", report=report)


def small(gpu: str = ADDRESS, **more: Any) -> DesktopVgpu:
    return DesktopVgpu(gpu, "A100-4C", 4096, **more)


def shown(gpu: GpuContents) -> list[tuple[str | None, int | None]]:
    return [(None if one.desktop is None else one.desktop.name, one.vgpu.framebuffer_mib) for one in gpu.slices]


def test_vgpus_of_no_desktop_are_others() -> None:
    first, second = gpus_of(room(3, 0), (desktop("a", small()),))
    assert (first.address, first.model, first.framebuffer_mib, first.taken_mib) == (
        ADDRESS,
        "NVIDIA A100",
        40960,
        12288,
    )
    assert shown(first) == [("a", 4096), (None, 4096), (None, 4096)]
    assert (second.taken_mib, second.slices) == (0, ())


def test_others_of_another_size_have_what_is_left() -> None:
    (gpu,) = gpus_of(room(2, size=8192), ())
    assert (gpu.taken_mib, shown(gpu)) == (16384, [(None, 8192), (None, 8192)])


def test_slices_are_in_the_order_of_their_places_and_then_by_name() -> None:
    desktops = (
        desktop("d", small()),
        desktop("c", small(placement=4)),
        desktop("b", small()),
        desktop("a", small(placement=8)),
    )
    assert [name for name, _ in shown(gpus_of(room(4), desktops)[0])] == ["c", "a", "b", "d"]


def test_a_report_that_is_newer_than_the_room_counts() -> None:
    (gpu,) = gpus_of(room(0), (desktop("a", small()), desktop("b", small())))
    assert (gpu.taken_mib, len(gpu.slices)) == (8192, 2)


def test_a_gpu_of_which_the_room_says_nothing_is_shown_with_its_desktops() -> None:
    (gpu,) = gpus_of(None, (desktop("a", small(OTHER)),))
    assert (gpu.address, gpu.model, gpu.framebuffer_mib, gpu.taken_mib) == (OTHER, "", None, 4096)


def test_an_agent_that_says_no_addresses_shows_only_desktops() -> None:
    assert gpus_of(room_of(counted_gpu(A16_2Q=(3, 8))), ()) == ()


def test_a_whole_gpu_is_all_of_it() -> None:
    host = room_of(whole=(whole_gpu(address=ADDRESS), whole_gpu(free=False, address=OTHER)))
    first, second = gpus_of(host, (desktop("a", DesktopVgpu(ADDRESS)),))
    assert (shown(first), shown(second)) == ([("a", None)], [(None, None)])
    known = replace(host, gpus=tuple(replace(gpu, framebuffer_mib=46068) for gpu in host.gpus))
    first, second = gpus_of(known, (desktop("a", DesktopVgpu(ADDRESS)),))
    assert [(gpu.framebuffer_mib, gpu.taken_mib) for gpu in (first, second)] == [(46068, 46068)] * 2
    divided = room(0)
    divided = replace(divided, gpus=(replace(divided.gpus[0], whole=True, free=False),))
    (gpu,) = gpus_of(divided, (desktop("a", DesktopVgpu(ADDRESS)),))
    assert (gpu.taken_mib, shown(gpu)) == (40960, [("a", None)])
    assert shown(gpus_of(divided, ())[0]) == [(None, None)]


@pytest.mark.parametrize("change", [{"rule": 7}, {"rule": -1}, {"state": ("x",)}, {"vgpus": 10**9}, {"vgpus": -5}])
def test_a_host_that_says_nonsense_costs_little_and_fails_nothing(change: dict[str, Any]) -> None:
    host = room(3)
    (gpu,) = gpus_of(replace(host, gpus=(replace(host.gpus[0], **change),)), (desktop("a", small()),))
    assert 1 <= len(gpu.slices) <= MAX_OTHERS + 1
    assert gpu.taken_mib <= 40960
