# SPDX-License-Identifier: Apache-2.0
"""The table of fields is complete, and cheap enough to import for shell completion."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vgpuctl.config.vm_fields import VmField
from vgpuctl.config.vm_request import FIELDS, OPTION_FIELDS, VmRequest, recorded_values, request_of_record
from vgpuctl.config.vm_spec import build_request
from vgpuctl.value import replace

HEAVY = ("pydantic", "ruamel", "jinja2", "lxml", "libvirt", "pynvml", "paramiko", "pycdlib", "click")


@pytest.mark.parametrize("module", ["vgpuctl.config.vm_request", "vgpuctl.model.numbers", "vgpuctl.config.rules"])
def test_light_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_field_has_help_and_an_example_that_passes_its_rule(field: VmField) -> None:
    assert field.help
    assert field.name == "name" or field.option.startswith("--")
    assert field.example or field.is_flag or field.name == "name"
    example = int(field.example) if field.is_number else field.example
    if example:
        field.value(field.rule(example))


def test_what_the_record_keeps_of_a_request_reads_back_as_the_same() -> None:
    """The fields that the domain shows are not in a record, and the request has their defaults."""
    given = {
        field.name: field.rule(int(e) if field.is_number else e) for field in OPTION_FIELDS if (e := field.example)
    }
    made = replace(build_request(given), cloud_init="/a", network_config="/b", force_console=True)
    recorded = json.loads(json.dumps(recorded_values(made)))
    assert recorded.keys() == {field.name for field in OPTION_FIELDS if field.recorded}
    read = request_of_record(recorded)
    for field in OPTION_FIELDS:
        kept = made if field.recorded else VmRequest()
        assert getattr(read, field.attribute) == getattr(kept, field.attribute), field.name


def test_what_cannot_be_read_in_a_record_has_its_default() -> None:
    assert request_of_record({"numa_node": "one", "owner": 4, "labels": [1], "new": True, "gpu": None}) == VmRequest()
