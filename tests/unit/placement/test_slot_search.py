# SPDX-License-Identifier: Apache-2.0
"""Several vGPUs on several GPUs: where the policy puts them, and placed whenever there is a way; brute force, HiGHS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_gpu_instances import BIG, H3, HALF, SMALL
from tests.unit.gpu.test_gpu_instances import host as with_mig
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.unit.gpu.test_numbers import grown
from tests.values import A4C, A5C, a100, snapshot, taken
from vgpuctl.config.arguments import PLACEMENT_POLICIES
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fit import fit_together
from vgpuctl.placement.fleet import build_fleet_state
from vgpuctl.placement.policy import POLICIES
from vgpuctl.placement.slot_search import OpenGpu, ProfileRequest, add_slot, search_slots
from vgpuctl.placement.vm_placement import list_open_gpus, place_vgpus
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
    st.sampled_from(PLACEMENT_POLICIES),
)
def test_they_are_all_placed_whenever_there_is_a_way(there, wanted, policy):
    gpus = [a100(f"0000:{n + 16:02x}:00.0", types=(A4C, A5C, A8C, A20C)) for n in range(len(there))]
    used = [taken(g, t, carrier=g.address + "x") for g, t in zip(gpus, there, strict=True) if t is not None]
    hosts = [OpenGpu(g, tuple(v for v in used if v.gpu == g.address)) for g in gpus]
    every = [item(t, hosts) for t, n in wanted.items() for _ in range(n)]
    result = search_slots(snapshot(*gpus, vgpus=tuple(used)), hosts, every, policy).slots
    assert (result is not None) == some_way(hosts, every, ((),) * len(hosts))
    assert result is None or [slot.vgpu_type.profile for slot in result] == [i.text for i in every]
    assert result is None or len({(s.gpu.address, s.function) for s in result}) == len(every)


CARDS = {
    "same size": lambda at: a100(at, types=(A4C, A5C, A8C, A20C)),
    "same size, few VFs": lambda at: a100(at, types=(A4C, A5C, A8C), vfs=3),
    "mixed sizes": lambda at: mixed(address=at),
    "instances": lambda at: with_mig(19, 19, 9, address=at),
    "shared instances": lambda at: with_mig(19, 9, 19, address=at, types=(BIG, HALF, SMALL, H3)),
}


def part_filled(card: str, data: st.DataObject) -> tuple[Snapshot, list[ProfileRequest]]:
    """Return up to three cards with vGPUs on them, and up to eight more vGPUs, larger ones first."""
    gpus: list[Gpu] = []
    there: list[Vgpu] = []
    for number in range(data.draw(st.integers(1, 3))):
        gpu, on_it = grown(CARDS[card](f"0000:{number + 16:02x}:00.0"), data)
        gpus.append(gpu)
        there += [replace(v, carrier=f"{gpu.address}-{v.carrier}") for v in on_it]
    types = [t for t in gpus[0].types if t.framebuffer_mib is not None]
    wanted = data.draw(st.lists(st.sampled_from(types), min_size=1, max_size=8))
    wanted.sort(key=lambda t: (-(t.framebuffer_mib or 0), t.profile))
    observed = snapshot(*gpus, vgpus=tuple(there))
    return observed, [item(t, list_open_gpus(observed, gpus)) for t in wanted]


def put_by_policy(observed: Snapshot, wanted: Sequence[ProfileRequest], policy: str) -> list[Gpu] | None:
    """Return where a policy puts them one after the other; None when it leaves one of them without room."""
    profiles = frozenset(request.text for request in wanted)
    fleet, chooser = build_fleet_state(observed, observed.gpus, None, profiles).fleet, POLICIES[policy]()
    gpus = []
    for request in wanted:
        choice = chooser.choose(fleet, request.text)
        if choice is None:
            return None
        gpus.append(observed.gpus[choice.gpu])
        fleet.add_vgpu(choice.gpu, choice.placement)
    return gpus


@pytest.mark.parametrize("card", CARDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_they_are_where_the_policy_puts_them_or_else_wherever_the_solver_finds_room(card, data):
    observed, wanted = part_filled(card, data)
    policy = data.draw(st.sampled_from(PLACEMENT_POLICIES))
    every_gpu = list_open_gpus(observed, observed.gpus)
    result = search_slots(observed, every_gpu, wanted, policy)
    at_once = search_slots(observed, every_gpu, wanted, policy, max_alternatives=0).slots
    by_policy = put_by_policy(observed, wanted, policy)
    assert (at_once and [slot.gpu for slot in at_once]) == by_policy
    assert at_once is None or result.slots == at_once
    joint = fit_together(build_fleet_state(observed, observed.gpus).fleet, Counter(request.text for request in wanted))
    assert (joint.why_not_proven, result.is_cut) == (None, False)
    assert (result.slots is not None) == (not joint.excess)


class Counting(dict):
    """Types by GPU that count the lookups: one for each part of the request on each GPU."""

    observations = 0

    def get(self, address):
        Counting.observations += 1
        return super().get(address)


SIZES = tuple(
    replace(A4C, type_id=f"{n}", name=f"A-{n}C", profile=f"A-{n}C", framebuffer_mib=n * 1024) for n in range(1, 10)
)


def test_what_does_not_fit_is_refused_without_trying_every_way():
    gpus = [a100(f"0000:{n + 16:02x}:00.0", types=SIZES) for n in range(8)]
    hosts = [OpenGpu(g, ()) for g in gpus]
    items = [item(t, hosts) for t in SIZES]
    counting = [ProfileRequest(Counting(i.types), i.text) for i in items]
    result = search_slots(snapshot(*gpus), hosts, counting, None)
    assert (result.slots, result.is_cut) == (None, False)
    assert 0 < Counting.observations < 1000


def test_a_search_among_gpus_that_all_differ_ends_and_says_so():
    gpus = [
        a100(f"0000:{n + 16:02x}:00.0", types=tuple(replace(t, max_per_gpu=n + 1) for t in SIZES)) for n in range(8)
    ]
    with pytest.raises(NoCapacity, match="no room for") as caught:
        place_vgpus(snapshot(*gpus), [(t.profile, 1) for t in SIZES])
    assert caught.value.facts["details"][0].startswith("the search ended after 2000 other places")
