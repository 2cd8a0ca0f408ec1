# SPDX-License-Identifier: Apache-2.0
"""The declared fields of a VM; a shape finds every problem of a mapping at once and says where each is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vgpuctl.config.rules import Problem, ValidationError, as_text, whole_number
from vgpuctl.config.shape import Key, Shape, single_or_list
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
    flags = {"force_console": True, "force_reset": True, "guest_helper": True, "off_after_setup": True}
    made = replace(build_request(given), cloud_init="/a", network_config="/b", **flags)
    recorded = json.loads(json.dumps(recorded_values(made)))
    assert recorded.keys() == {field.name for field in OPTION_FIELDS if field.recorded}
    read = request_of_record(recorded)
    for field in OPTION_FIELDS:
        kept = made if field.recorded else VmRequest()
        assert getattr(read, field.attribute) == getattr(kept, field.attribute), field.name


def test_what_cannot_be_read_in_a_record_has_its_default() -> None:
    assert request_of_record({"numa_node": "one", "owner": 4, "labels": [1], "new": True, "gpu": None}) == VmRequest()


INNER = Shape("Inner", "inner", (Key("size", whole_number(1, 9), "size"),))
SHAPE = Shape(
    "Outer",
    "outer",
    (
        Key("version", whole_number(1, 1), "version", required=True),
        Key("names", single_or_list(as_text), "names"),
        Key("inner", INNER.check, "inner", nested_shape=INNER),
    ),
    lambda fields: (Problem(("names",), "not with inner"),) if fields.keys() >= {"names", "inner"} else (),
)


def problems(value: object) -> tuple[Problem, ...]:
    with pytest.raises(ValidationError) as caught:
        SHAPE.check(value)
    return caught.value.problems


def test_given_fields_are_checked_and_ordered() -> None:
    assert list(SHAPE.check({"inner": {"size": 2}, "version": 1, "names": None}).items()) == [
        ("version", 1),
        ("inner", {"size": 2}),
    ]
    assert SHAPE.check({"version": 1, "names": "a"})["names"] == ("a",)


def test_every_problem_has_its_path() -> None:
    assert problems({"names": ["a", 1, 2], "inner": {"siz": 1, "size": 10}, "ohter": 1}) == (
        Problem(("ohter",), "unknown field", at_key=True),
        Problem(("version",), "missing"),
        Problem(("names", 1), "1 is not text: put it in quotes"),
        Problem(("names", 2), "2 is not text: put it in quotes"),
        Problem(("inner", "siz"), "unknown field (did you mean 'size'?)", at_key=True),
        Problem(("inner", "size"), "10 is not between 1 and 9"),
        Problem(("names",), "not with inner"),
    )


@pytest.mark.parametrize("value", [None, 1, "a", [{}]])
def test_a_non_mapping_is_refused(value: object) -> None:
    assert problems(value) == (Problem((), "expected a mapping (key: value)"),)


def test_a_required_key_is_not_null() -> None:
    assert problems({"version": None}) == (Problem(("version",), "null is not a whole number"),)


def test_many_unknown_fields_are_counted() -> None:
    with pytest.raises(ValidationError) as caught:
        Shape("S", "", ()).check({f"f{number}": 1 for number in range(5000)})
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].text == "5000 unknown fields; the first 20 are listed"
