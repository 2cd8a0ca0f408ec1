# SPDX-License-Identifier: Apache-2.0
"""The shipped models."""

from __future__ import annotations

import pytest

from vgpuctl.sim.models import known_names, model, models


@pytest.mark.parametrize("text", ["A100", "a100", "A100 PCIe 40GB", "NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"])
def test_a_model_is_found_by_any_of_its_names(text: str) -> None:
    assert model(text) is models()["A100"]
    assert model("A1000") is None
    assert "A100" in known_names()


@pytest.mark.parametrize("name", ["A100", "T4", "A16", "A40", "A10", "L40S", "RTX PRO 4500"])
def test_figures_are_consistent(name: str) -> None:
    entry = models()[name]
    assert len({t["id"] for t in entry["profiles"]}) == len(entry["profiles"])
    for kind in entry["profiles"]:
        assert kind["max"] * kind["framebuffer_mib"] <= entry["framebuffer_mib"], kind["name"]
        assert kind["max"] <= 32
