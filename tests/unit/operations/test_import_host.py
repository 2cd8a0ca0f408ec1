# SPDX-License-Identifier: Apache-2.0
"""import prints a host.yaml that apply accepts, and apply then creates what mdevctl defines."""

from __future__ import annotations

import json

import pytest

from tests.hosts import open_sim_host, picture
from tests.unit.operations.test_apply import run
from tests.vgpus import finding_kinds
from vgpuctl.config.import_formats import parse_import
from vgpuctl.operations.import_host import import_host

UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
OTHER = f"{UUID[:-1]}2"


def dump(parent: str, type_id: str) -> str:
    """Return what `mdevctl list -d --dumpjson` prints of two mdevs."""
    attrs = [{"nvidia/vgpu_params": "frame_rate_limiter=0"}, {"assign": "5"}]
    first = {UUID: {"mdev_type": type_id, "start": "auto", "attrs": attrs}}
    return json.dumps([{parent: [first, {OTHER: {"mdev_type": type_id, "start": "auto"}}]}])


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("scenario", "parent", "type_id"), [("t4", "0000:3b:00.0", "nvidia-231"), ("a16", "0000:3b:00.4", "nvidia-712")]
)
def test_what_mdevctl_dumps_is_made_or_taken_over_by_apply(tmp_path, scenario, parent, type_id, started):
    host = open_sim_host(tmp_path, scenario)
    path = f"/sys/bus/pci/devices/{parent}/mdev_supported_types/{type_id}/create"
    if started:
        host.ports.sysfs.write(path, UUID)
    read = import_host(host.ports, parse_import(dump(parent, type_id), "dump", None))
    assert read.data.left_out == ("dump:1: vgpuctl does not set the attribute assign",)
    assert run(host.ports, file=read.data.text).changed
    seen = picture(host)
    assert set(seen.mdevs) == {UUID, OTHER} == set(seen.claims)
    assert (seen.params.get(UUID) or seen.mdevs[UUID][2]) == ("" if started else "frame_rate_limiter=0")
    assert (finding_kinds(host.again()), run(host.ports).changed) == ([], False)
    host.sim.reboot()
    host = host.again()
    assert run(host.ports).changed
    assert set(picture(host).mdevs) == {UUID, OTHER}
