# SPDX-License-Identifier: Apache-2.0
"""A start that libvirt or QEMU refuses in words of the symptom index has a hint, at every command that starts a VM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran
from vgpuctl.model.symptoms import SYMPTOMS, find_hint

EXAMPLES = [text for symptom in SYMPTOMS for text in symptom.examples]


@pytest.mark.parametrize("text", EXAMPLES)
def test_create_vm_shows_the_remedy(vgpuctl: Callable[..., Ran], tmp_path: Path, text: str) -> None:
    scenario = tmp_path / "refused.yaml"
    fault = json.dumps({"on": "start", "code": 1, "message": text})
    scenario.write_text(
        f"version: 1\nstorage: {{pools: [{{name: default}}]}}\ngpus: [{{model: A40}}]\nfaults: [{fault}]\n"
    )
    ran = vgpuctl("--host", f"sim:{scenario}", "--json", "create-vm", "web", "--profile", "A40-8Q")
    assert ran.status == 1
    assert ran.document["error"]["hint"] == find_hint(text) is not None
    assert text in ran.document["error"]["message"]
    shown = vgpuctl("--host", f"sim:{scenario}", "create-vm", "web", "--profile", "A40-8Q", "--no-start")
    assert shown.status == 0  # nothing of the refused VM is left


def test_start_vm_shows_the_remedy_too(vgpuctl: Callable[..., Ran], tmp_path: Path) -> None:
    scenario = tmp_path / "refused.yaml"
    words = "Requested operation is not valid: network 'lan' is not active"
    fault = json.dumps({"on": "start", "code": 55, "message": words})
    scenario.write_text(
        f"version: 1\nstorage: {{pools: [{{name: default}}]}}\ngpus: [{{model: A40}}]\nfaults: [{fault}]\n"
    )
    host = ("--host", f"sim:{scenario}")
    assert vgpuctl(*host, "create-vm", "web", "--profile", "A40-8Q", "--no-start").status == 0
    ran = vgpuctl(*host, "start-vm", "web")
    assert ran.status == 1
    assert "  hint: virsh net-start lan; virsh net-autostart lan" in ran.err.splitlines()
