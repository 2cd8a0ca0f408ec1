# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's mdev types, and how its GPUs say that they are divided."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from tests.values import a100, t4
from vgpuctl.makers.nvidia import Nvidia
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.operations.queries import list_gpus, list_profiles

GEFORCE = "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("GRID T4-2Q\n", "num_heads=4, framebuffer=2048M, max_instance=8", ("T4-2Q", 2048, 8)),
        ("NVIDIA GeForce RTX 3050", "", ("NVIDIA GeForce RTX 3050", None, None)),
        ("", "", ("nvidia-231", None, None)),
    ],
)
def test_a_type_is_read(name, description, expected):
    known = Nvidia().read_type("nvidia-231", name, description)
    assert (known.profile, known.framebuffer_mib, known.max_per_gpu) == expected
    assert known.pool_units is None


@pytest.mark.parametrize(
    ("gpu", "is_warned_about"),
    [
        (a100(model=GEFORCE), True),
        (t4(model=GEFORCE), True),
        (a100(model=GEFORCE, backend=None), True),  # VFs are on, whatever they offer
        (
            t4(model=GEFORCE, backend=Backend.PASSTHROUGH, mode=GpuMode.PASSTHROUGH),
            False,
        ),  # a whole one
        (a100(), False),
    ],
)
def test_vgpus_of_a_geforce_are_not_supported(gpu, is_warned_about):
    assert (Nvidia().support_warning(gpu) is not None) is is_warned_about


def test_a_patched_driver_works_as_what_it_offers_and_each_command_warns_once(tmp_path):
    profile = "{name: NVIDIA RTX6000-Ada-8Q, id: 900, framebuffer_mib: 8192, max: 3}"
    card = f"{{model: RTX 4090, driver: nvidia, backend: vendor-vf, vfs: {{total: 4}}, profiles: [{profile}]}}"
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus: [{card}]\n")
    made = create(host.ports, request("RTX6000-Ada-8Q"))
    assert made.data.vgpus[0].profile == "RTX6000-Ada-8Q"
    for result in (made, list_gpus(host.ports), list_profiles(host.ports)):
        (warning,) = [text for text in result.warnings if "GeForce" in text]
        assert "not supported by NVIDIA" in warning
