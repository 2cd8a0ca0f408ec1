# SPDX-License-Identifier: Apache-2.0
"""The use of a host's GPUs: each maker's cards have a source of their own, and what no source reports is unknown."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.operations.usage import read_usage


@pytest.mark.parametrize(
    ("scenario", "sources"),
    [
        ("a100-40", {"nvml"}),
        ("ascend", {"npu-smi"}),
        ("mi300x", {"amd-smi"}),
        ("mtt-s3000", {"mthreads-gmi"}),
        ("mixed", {"nvml", "sysfs", "amd-smi", None}),
    ],
)
def test_who_reports_the_use_of_a_simulated_hosts_cards(tmp_path, scenario, sources):
    usage = read_usage(open_sim_host(tmp_path, scenario).ports).data
    assert {None if gpu.use is None else gpu.use.source for gpu in usage.gpus} == sources
    assert (usage.driver_version is None) is ("nvml" not in sources), "only NVML reports NVIDIA's driver"
    assert usage.failed_sources == {}


def test_of_another_makers_card_the_card_is_known_and_its_vgpus_are_not(tmp_path):
    host = open_sim_host(tmp_path, "ascend")
    create(host.ports, request("vnpu-vir04"))
    usage = read_usage(host.ports).data
    (vgpu,) = usage.vgpus
    assert (vgpu.profile, vgpu.framebuffer_mib, vgpu.use) == ("vnpu-vir04", 12288, None)
    card = next(gpu.use for gpu in usage.gpus if gpu.address == vgpu.gpu)
    assert card is not None
    assert card.up
    assert card.power_watts is not None
    assert card.memory_size_bytes == 24 << 30
