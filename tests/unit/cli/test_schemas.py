# SPDX-License-Identifier: Apache-2.0
"""The schemas are valid, and accept the documents that the program prints."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.unit.cli.command_tree import walk_commands
from vgpuctl.cli import document, schemas
from vgpuctl.cli.command import Command
from vgpuctl.cli.result_reader import Mismatch, read_result
from vgpuctl.cli.schemas import all_kinds, result_type


@pytest.mark.parametrize("kind", all_kinds())
def test_a_schema_is_valid_and_takes_a_failure(kind: str) -> None:
    schema = schemas.document_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    error = {
        "code": "failed", "message": "m", "hint": None, "facts": {}, "exit_status": 1, "undone": [], "left": [],
    }  # fmt: skip
    jsonschema.validate(json.loads(document.text(document.failure_body(kind, error, changed=False))), schema)


def test_every_command_has_a_kind() -> None:
    commands = {
        words.removeprefix("vgpuctl ").replace(" ", "-") for words, c in walk_commands() if isinstance(c, Command)
    }
    assert {*commands, "hosts"} == {*all_kinds()}


def test_unknown_is_null_and_what_an_older_host_does_not_send_is_unknown() -> None:
    schema = schemas.document_schema("list-profiles")
    row = {
        "profile": "A100-4C", "name": "GRID A100-4C", "type_id": "468", "framebuffer_mib": None,
        "max_per_gpu": None, "free": None, "free_at_least": 0, "excludes": None,
        "gpus": [{"address": "0000:3b:00.0", "free": None, "free_at_least": 0}], "new": 1,
    }  # fmt: skip
    parsed = {
        "schema": "vgpuctl/1", "kind": "list-profiles", "ok": True, "changed": False, "data": [row], "warnings": ["w"],
    }  # fmt: skip
    jsonschema.validate(parsed, schema)
    result = read_result(result_type("list-profiles"), parsed)
    assert (result.data[0].free, result.warnings) == (None, ("w",))
    del row["free"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parsed, schema)
    assert read_result(result_type("list-profiles"), parsed).data[0].free is None
    del row["free_at_least"]
    with pytest.raises(Mismatch, match=r"data\[0\]\.free_at_least is missing"):
        read_result(result_type("list-profiles"), parsed)


def test_a_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="no schema for"):
        schemas.schema_of(complex, {})
