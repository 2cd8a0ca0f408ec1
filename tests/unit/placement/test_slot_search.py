# SPDX-License-Identifier: Apache-2.0
"""Several vGPUs on several GPUs: all are placed whenever possible, compared with a brute-force search."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_mixed_size import A40
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.values import A4C, A5C, a100, snapshot, taken
from vgpuctl.model.gpu import VgpuType
from vgpuctl.placement.fleet_state import build_fleet_state
from vgpuctl.placement.slot_search import OpenGpu, ProfileRequest, add_slot, search_slots
from vgpuctl.value import replace

A8C = replace(A4C, type_id="470", name="GRID A100-8C", profile="A100-8C", framebuffer_mib=8192, max_per_gpu=5)
A20C = replace(A4C, type_id="471", name="GRID A100-20C", profile="A100-20C", framebuffer_mib=20480, max_per_gpu=2)


def item(wanted: VgpuType, hosts: Sequence[OpenGpu]) -> ProfileRequest:
    known = {h.gpu.address: t for h in hosts for t in h.gpu.types if t.name == wanted.name}
    return ProfileRequest(known, wanted.profile)


def some_way(hosts: Sequence[OpenGpu], wanted: Sequence[ProfileRequest], slots: tuple[tuple, ...]) -> bool:
    """Return whether they fit; try every GPU for each."""
    if not wanted:
        return True
    for n, host in enumerate(hosts):
        known = wanted[0].types.get(host.gpu.address)
        more = add_slot(host, slots[n], known) if known is not None else None
        if more is not None and some_way(hosts, wanted[1:], (*slots[:n], more, *slots[n + 1 :])):
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([None, A4C, A5C, A20C]), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from([A4C, A5C, A8C, A20C]), st.integers(1, 3), min_size=1),
)
def test_they_are_all_placed_whenever_there_is_a_way(there, wanted):
    gpus = [a100(f"0000:{n + 16:02x}:00.0", types=(A4C, A5C, A8C, A20C)) for n in range(len(there))]
    used = [taken(g, t, carrier=g.address + "x") for g, t in zip(gpus, there, strict=True) if t is not None]
    hosts = [OpenGpu(g, tuple(v for v in used if v.gpu == g.address)) for g in gpus]
    numbers = build_fleet_state(snapshot(*gpus, vgpus=tuple(used)), gpus)
    alike = {g.address: numbers.fleet.group_of(n) for n, g in enumerate(numbers.gpus)}
    items = [(item(t, hosts), n) for t, n in wanted.items()]
    every = [i for i, n in items for _ in range(n)]
    result = search_slots(hosts, items, alike)
    assert (result is not None) == some_way(hosts, every, ((),) * len(hosts))
    assert (search_slots(hosts, items) is not None) == (result is not None)
    assert result is None or [len(slots) for slots in result] == [n for _, n in items]
    assert result is None or len({(s.gpu.address, s.function) for slots in result for s in slots}) == len(every)


class Counting(dict):
    """Types by GPU that count the lookups: one for each part of the request on each GPU."""

    observations = 0

    def get(self, address):
        Counting.observations += 1
        return super().get(address)


def test_what_does_not_fit_is_refused_without_trying_every_way():
    sizes = [
        replace(A4C, type_id=f"{n}", name=f"A-{n}C", profile=f"A-{n}C", framebuffer_mib=n * 1024) for n in range(9)
    ]
    gpus = [a100(f"0000:{n + 16:02x}:00.0", types=tuple(sizes)) for n in range(8)]
    hosts = [OpenGpu(g, ()) for g in gpus]
    alike = dict.fromkeys((g.address for g in gpus), "alike")
    items = [item(t, hosts) for t in sizes]
    assert search_slots(hosts, [(ProfileRequest(Counting(i.types), i.text), 1) for i in items], alike) is None
    assert 0 < Counting.observations < 1000
    assert search_slots(hosts, [(i, 1) for i in items]) is None


def test_vgpus_of_several_sizes_share_a_mixed_size_gpu():
    hosts = [OpenGpu(mixed(), ())]
    result = search_slots(hosts, [(item(t, hosts), 1) for t in (A40[1], A40[2], A40[4])])
    assert result is not None
    assert len({slot.placement_id for slots in result for slot in slots}) == 3
