# SPDX-License-Identifier: Apache-2.0
"""The shipped models."""

from __future__ import annotations

import pytest

from vgpuctl.sim.models import find_model, load_models, model_names


@pytest.mark.parametrize("text", ["A100", "a100", "A100 PCIe 40GB", "NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"])
def test_find_model_by_any_of_its_names(text: str) -> None:
    assert find_model(text) is load_models()["A100"]
    assert find_model("A1000") is None
    assert "A100" in model_names()


@pytest.mark.parametrize("name", ["A100", "T4", "A16", "A40", "A10", "L40S", "RTX PRO 4500"])
def test_figures_are_consistent(name: str) -> None:
    entry = load_models()[name]
    assert len({t["id"] for t in entry["profiles"]}) == len(entry["profiles"])
    for kind in entry["profiles"]:
        assert kind["max"] * kind["framebuffer_mib"] <= entry["framebuffer_mib"], kind["name"]
        assert kind["max"] <= 32
