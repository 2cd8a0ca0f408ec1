# SPDX-License-Identifier: Apache-2.0
"""ensure-vgpu: missing vGPUs are created, existing ones stay, differing ones are refused, deleted ones stay deleted."""

from __future__ import annotations

import pytest

from tests.hosts import context, open_sim_host, picture, request
from tests.vgpus import make
from vgpuctl.errors import Exists, InvalidInput, NotFound, SpecDiffers
from vgpuctl.model.outcome import Outcome
from vgpuctl.operations import queries
from vgpuctl.operations.vgpus import ensure_vgpu
from vgpuctl.ports.host import Host
from vgpuctl.value import replace


def ensure(ports: Host, *profiles: str, state: str = "present", dry_run: bool = False, **more: object) -> Outcome:
    wanted = replace(request(*profiles, **more), name="spare")
    wanted = wanted if profiles else replace(wanted, profiles=())
    return ensure_vgpu(ports, context(dry_run=dry_run), wanted, state=state)


def test_the_second_run_changes_nothing_and_a_dry_run_says_what_the_first_does(host):
    before = picture(host)
    planned = ensure(host.ports, "A100-4C", dry_run=True)
    assert (planned.changed, picture(host)) == (True, before)
    made = ensure(host.ports, "A100-4C")
    assert (made.changed, made.steps, made.data.before) == (True, planned.steps, None)
    assert made.data.after == planned.data.after
    seen = picture(host)
    for text in ("A100-4C", "GRID A100-4C", "468"):
        again = ensure(host.ports, text, gpu="0000:3b:00.0")
        assert (again.changed, again.steps, picture(host)) == (False, (), seen)
        assert again.data.before == again.data.after
    assert not ensure(host.ports).changed, "its name is enough"
    assert not ensure(host.ports, gpu="A100").changed, "a model is a GPU too"


def test_one_whose_device_was_changed_by_hand_is_not_present(host):
    carrier = ensure(host.ports, "A100-4C").data.carrier
    for type_id in ("0", "469"):
        host.ports.sysfs.write(f"/sys/bus/pci/devices/{carrier}/nvidia/current_vgpu_type", type_id)
    host = host.again()
    for profiles in ((), ("A100-4C",)):
        with pytest.raises(SpecDiffers, match="it has A100-5C"):
            ensure(host.ports, *profiles)


def test_another_profile_gpu_or_parameter_is_refused_with_both_sides(tmp_path):
    host = open_sim_host(tmp_path, "l40s-x4")
    there = make(host.ports, "L40S-4Q").data.gpu
    seen = picture(host)
    other = next(g.address for g in queries.list_gpus(host.ports).data if g.address != there)
    for words in ({"gpu": other}, {"vgpu_params": (("frame_rate_limiter", "0"),)}):
        with pytest.raises(SpecDiffers):
            ensure(host.ports, "L40S-4Q", **words)
    with pytest.raises(NotFound):
        ensure(host.ports, "L40S-4Q", gpu="0000:ff:00.0")
    with pytest.raises(SpecDiffers, match="it is L40S-4Q, not L40S-8Q") as raised:
        ensure(host.ports, "L40S-8Q")
    assert (raised.value.facts["before"], raised.value.facts["after"]) == (
        {"profile": "L40S-4Q"},
        {"profile": "L40S-8Q"},
    )
    assert picture(host) == seen


def test_it_is_removed_once(host):
    before = picture(host)
    assert not ensure(host.ports, state="absent").changed
    made = make(host.ports)
    assert ensure(host.ports, state="absent", dry_run=True).changed
    gone = ensure(host.ports, state="absent")
    assert (gone.changed, gone.data.after, picture(host)) == (True, None, before)
    assert gone.data.before.hostdev == made.data.hostdev
    assert not ensure(host.ports, state="absent").changed


def test_what_cannot_be_made_says_what_is_missing(host):
    with pytest.raises(InvalidInput, match="cannot be created without a profile"):
        ensure(host.ports)
    make(host.ports)
    host.sim.reboot()
    with pytest.raises(Exists, match="its device is missing") as raised:
        ensure(host.again().ports, "A100-4C")
    assert "restore-host" in str(raised.value.hint)
