# SPDX-License-Identifier: Apache-2.0
"""NVML as the scenario defines it."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import GPU, MakeHost
from vgpuctl.model.port_values import EccState, NvmlStatus, NvmlVgpuType


def test_types_with_framebuffer_and_maximum(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.nvml.status() == NvmlStatus(available=True, driver_version="550.90.05")
    gpu = host.nvml.gpu(GPU)
    assert gpu is not None
    assert (gpu.model, gpu.framebuffer_mib, len(gpu.types)) == ("NVIDIA A100-PCIE-40GB", 40960, 13)
    assert gpu.types[468] == NvmlVgpuType(468, "GRID A100-4C", 4096, 10, 16)
    assert gpu.types[474] == NvmlVgpuType(474, "GRID A100-1-5C", 5120, 7, 16, gi_profile_id=19, max_per_gi=1)
    assert (gpu.mixed_size, gpu.mig and gpu.mig.enabled) == (False, False)


def test_desktop_types_go_alone_into_a_vm(make: MakeHost) -> None:
    gpu = make("a16").nvml.gpu(GPU)
    assert gpu is not None
    assert {t.name.split("-")[1]: t.max_per_vm for t in gpu.types.values() if "-4" in t.name or "-2B" in t.name} == {
        "2B": 1, "4A": 1, "4C": 16, "4Q": 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ecc"),
    [
        ("gpus: [{model: A16}]\n", EccState(enabled=True, pending_enabled=True)),
        ("nvidia: {nvml: absent}\ngpus: [{model: A100}]\n", None),
        ("gpus: [{model: V710}]\n", None),
    ],
)
def test_memory_has_error_correction_where_nvml_answers(make: MakeHost, text: str, ecc: EccState | None) -> None:
    assert make(text).nvml.ecc(GPU) == ecc


@pytest.mark.parametrize("reason", ["absent", "too-old", "nvmlDeviceGetSupportedVgpus"])
def test_missing_for_a_reason(make: MakeHost, reason: str) -> None:
    host = make(f"nvidia: {{nvml: {reason}}}\ngpus: [{{model: A100}}]\n")
    assert host.nvml.status() == NvmlStatus(available=False, reason=reason)
    assert host.nvml.gpu(GPU) is None


def test_only_nvidias_bound_gpus(make: MakeHost) -> None:
    host = make("mixed")
    assert host.nvml.gpu("0000:86:00.0") is None
    assert host.nvml.gpu("0000:d8:00.0") is None
    assert host.nvml.gpu("00000000:3B:00.0") is not None
    assert make("empty", "other").nvml.status() == NvmlStatus(available=False, reason="absent")
