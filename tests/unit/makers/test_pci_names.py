# SPDX-License-Identifier: Apache-2.0
"""The table of names by PCI ids agrees with what NVML says of the simulator's cards."""

from __future__ import annotations

import re

import pytest

from tests.hosts import open_sim_host
from vgpuctl.makers import PCI_MODELS
from vgpuctl.observe import ReadScope, observe


def test_ids_are_those_of_the_kernel_and_sizes_are_whole():
    for pci_id, (name, size_gib) in PCI_MODELS.items():
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", pci_id), pci_id
        assert len(name.split()) > 1
        assert size_gib is None or size_gib > 0


@pytest.mark.parametrize("model", ["A100", "A16", "A40", "A10", "L40S", "H100"])
def test_a_card_has_the_same_name_with_its_driver_and_without(tmp_path, model):
    host = open_sim_host(tmp_path, text=f"version: 1\ngpus:\n  - {{model: {model}}}\n")
    gpu = observe(host.ports, ReadScope()).gpus[0]
    assert gpu.pci_id is not None
    name, size_gib = PCI_MODELS[gpu.pci_id]
    assert (gpu.model, gpu.framebuffer_mib) == (name, (size_gib or 0) * 1024)
