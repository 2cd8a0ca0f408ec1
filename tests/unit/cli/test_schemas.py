# SPDX-License-Identifier: Apache-2.0
"""Documents contain only JSON types, for any input; the schemas are valid, and accept what the program prints."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.unit.cli.command_tree import walk_commands
from vgpuctl.cli import document, schemas
from vgpuctl.cli.command import Command
from vgpuctl.cli.schemas import all_kinds, result_type
from vgpuctl.model import documents, json_schema
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.result_reader import Mismatch, read_result
from vgpuctl.model.results import ABSENT, Absent
from vgpuctl.value import Value


@pytest.mark.parametrize("kind", all_kinds())
def test_a_schema_is_valid_and_takes_a_failure(kind: str) -> None:
    schema = schemas.document_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    error = {
        "code": "failed", "message": "m", "hint": None, "facts": {}, "exit_status": 1, "undone": [], "left": [],
    }  # fmt: skip
    jsonschema.validate(json.loads(document.text(documents.failure_body(kind, error, changed=False))), schema)


def test_every_command_has_a_kind() -> None:
    commands = {
        words.removeprefix("vgpuctl ").replace(" ", "-") for words, c in walk_commands() if isinstance(c, Command)
    }
    assert {*commands, "hosts"} == {*all_kinds(), schemas.DIAL}


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
        json_schema.schema_of(complex, {})


class Thing(Value):
    """An object of a type that JSON does not have."""

    size: int
    color: str | Absent = ABSENT
    is_: str | Absent = ABSENT


def test_success() -> None:
    data = {"owner": Ownership.MANAGED, "names": {"b", "a"}, "thing": Thing(1), "pair": (1, None), 5: True}
    assert json.loads(document.text(documents.success_body("show-vm", QueryResult(data, ("w",))))) == {
        "schema": "vgpuctl/1",
        "kind": "show-vm",
        "ok": True,
        "changed": False,
        "data": {"owner": "managed", "names": ["a", "b"], "thing": {"size": 1}, "pair": [1, None], "5": True},
        "warnings": ["w"],
    }


def test_a_change_has_its_steps_and_an_absent_field_is_left_out() -> None:
    outcome = Outcome(True, Thing(1, is_="x"), ("a step",), notes=("a note",), dry_run=True)
    data = json.loads(document.text(documents.success_body("set-mode", outcome)))["data"]
    assert data == {"size": 1, "is": "x", "steps": ["a step"], "notes": ["a note"], "dry_run": True}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_json_values_stay_as_they_are(value: object) -> None:
    assert documents.to_json_value(value) == value


def test_half_characters_become_whole_ones() -> None:
    assert documents.to_json_value("a\udcff") == "a\ufffd"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_cannot_write_is_unknown(number: float) -> None:
    value = {"a": number, "b": [{"c": number}]}
    assert json.loads(document.text(value)) == {"a": None, "b": [{"c": None}]}
    assert document.text(value, "yaml") == "a: null\nb:\n- c: null\n"


STRINGS = st.text() | st.sampled_from(
    [
        "yes",
        "No",
        "n",
        "0000:10:00.0",
        "1e3",
        "0x1f",
        "~",
        "null",
        "-",
        ": b",
        "a: b",
        "a #b",
        "2026-01-01",
        "=",
        "@x",
        "",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda values: st.lists(values) | st.dictionaries(STRINGS, values),
    max_leaves=8,
)


@given(st.dictionaries(STRINGS, VALUES))
def test_yaml_is_the_same_document_for_readers_of_both_versions(value: dict[str, object]) -> None:
    text = document.text(value, "yaml")
    for version in ("1.1", "1.2"):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(text) == documents.to_json_value(value)
    assert not any(ord(character) < 32 and character != "\n" for character in text)
