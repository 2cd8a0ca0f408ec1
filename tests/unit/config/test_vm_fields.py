# SPDX-License-Identifier: Apache-2.0
"""The table of fields is complete, and cheap enough to import for shell completion."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vgpuctl.config import device_rules, labels, rules
from vgpuctl.config.vm_fields import DEFAULTABLE_FIELDS, FIELD_BY_NAME, VM_FIELDS

HEAVY = ("pydantic", "ruamel", "jinja2", "lxml", "libvirt", "pynvml", "paramiko", "pycdlib", "click")


@pytest.mark.parametrize("module", ["vgpuctl.config.vm_fields", "vgpuctl.config.size_text", "vgpuctl.config.rules"])
def test_light_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_field_has_help_an_option_and_an_example() -> None:
    for entry in VM_FIELDS:
        assert entry.help
        assert entry.option.startswith("--")
        assert entry.example or entry.flag
    assert len(FIELD_BY_NAME) == len(VM_FIELDS)
    assert set(DEFAULTABLE_FIELDS) <= set(FIELD_BY_NAME)


@pytest.mark.parametrize("name", sorted(FIELD_BY_NAME))
def test_every_example_passes_its_rule(name: str) -> None:
    rule = {"os": rules.os_kind, "image": rules.path, "cdrom": rules.path, "cloud_init": rules.path,
            "network_config": rules.path, "networks": device_rules.network, "hugepages": device_rules.hugepages,
            "cpu_pin": device_rules.cpu_pin, "not_gpu": rules.gpu, "spread_group": rules.name,
            "storage_pool": rules.resource_name,
            "labels": labels.labels, "owner": labels.owner}.get(name) or getattr(rules, name, None)  # fmt: skip
    example = FIELD_BY_NAME[name].example
    if name in ("vcpus", "hotplug_slots", "numa_node", "gpus"):
        rules.whole_number(0, 100)(int(example))
    elif example and rule is not None:
        rule(example)
    else:
        assert FIELD_BY_NAME[name].flag
