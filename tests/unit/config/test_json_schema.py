# SPDX-License-Identifier: Apache-2.0
"""The published JSON Schemas match the models; VGPUCTL_REGENERATE=1 writes them again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_schema import fleet_file_schema, host_schema, pool_spec_schema, reader_schema, vm_spec_schema
from vgpuctl.config.host_spec import DEFAULTS_SHAPE, parse_host_spec
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.config.vm_spec import build_request, parse_vm_spec
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import InvalidInput

ROOT = Path(__file__).parents[3]
SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"vm-spec": vm_spec_schema, "host": host_schema}
READERS = {"vm-spec": parse_vm_spec, "host": parse_host_spec}


@pytest.mark.parametrize(
    ("name", "make"),
    [*SCHEMAS.items(), ("reader", reader_schema), ("pool-spec", pool_spec_schema), ("fleet-file", fleet_file_schema)],
)
def test_the_published_schema_is_the_models_own(name: str, make: Callable[[], dict[str, Any]]) -> None:
    path = ROOT / "docs" / "json" / f"{name}.schema.json"
    made = json.dumps(make(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("VGPUCTL_REGENERATE") == "1":
        path.write_text(made, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == made, "run the tests once with VGPUCTL_REGENERATE=1"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_and_describes_every_field(name: str) -> None:
    schema = SCHEMAS[name]()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert all(entry.get("description") for entry in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_the_schemas_have_the_fields_of_the_table() -> None:
    assert set(vm_spec_schema()["properties"]) == set(FIELDS)
    assert set(host_schema()["properties"]["defaults"]["anyOf"][0]["properties"]) == set(DEFAULTS_SHAPE.names)


def examples(kind: str) -> list[str]:
    page = "host-file.md" if kind == "host" else "vm-spec.md"
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    return re.findall(r"```(?:yaml|json)\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_examples_of_the_documentation_pass(name: str) -> None:
    result = examples(name)
    assert len(result) >= (4 if name == "vm-spec" else 1)
    for text in result:
        spec = READERS[name](text, "docs/reference/vm-spec.md")
        jsonschema.validate(load_document(text, "n").value, SCHEMAS[name]())
        if name == "vm-spec":
            build_request(spec)  # type: ignore[arg-type]


values = st.none() | st.booleans() | st.integers(-1, 5000) | st.sampled_from(
    ["A100-4C", "A:2", "8GiB", "8 gib", "8GB", "1.5GiB", "/a", "./a", "a/b", "linux", "vgpu", "sriov", "vm", "a=1", ""]
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*FIELDS]), values | st.lists(values, max_size=2), max_size=3))
def test_the_schema_accepts_valid_input(value: dict[str, object]) -> None:
    try:
        parse_vm_spec(json.dumps(value), "n")
    except InvalidInput:
        return
    jsonschema.validate(value, vm_spec_schema())


def test_the_documentation_names_every_field() -> None:
    text = (ROOT / "docs" / "reference" / "vm-spec.md").read_text(encoding="utf-8")
    for name in FIELDS:
        assert f"`{name}`" in text
