# SPDX-License-Identifier: Apache-2.0
"""The records: each is described, is made of types that JSON has, and is part of some command's or call's result."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Generic

import pytest

from vgpuctl.cli.schemas import all_kinds, result_type
from vgpuctl.controller.routes import CALLS
from vgpuctl.model import json_schema, results
from vgpuctl.model.results.vms import VmResult
from vgpuctl.value import Value

RECORDS = sorted(
    {
        record
        for module in pkgutil.iter_modules(results.__path__)
        for record in vars(importlib.import_module(f"{results.__name__}.{module.name}")).values()
        if isinstance(record, type) and issubclass(record, Value) and record.__module__.startswith(results.__name__)
    },
    key=lambda record: record.__name__,
)
FACTS = {"DoctorFinding", "NotRestored", "Restored", "Selected"}
"""Records in the facts of an error, or that a call of the library returns to a command."""


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_has_a_description_and_a_schema(record: type[Value]) -> None:
    definitions: dict[str, Any] = {}
    json_schema.schema_of(record[VmResult] if issubclass(record, Generic) else record, definitions)
    assert definitions[record.__name__.removesuffix("Result")]["description"]


def test_every_record_is_part_of_a_result() -> None:
    definitions: dict[str, Any] = {}
    for kind in all_kinds():
        json_schema.schema_of(result_type(kind), definitions)
    for call in CALLS.values():  # some are made by pages alone
        json_schema.schema_of(call.result_type, definitions)
    described = {record.__name__.removesuffix("Result") for record in RECORDS}
    bases = {base.__name__.removesuffix("Result") for record in RECORDS for base in record.__mro__[1:]}
    assert described - set(definitions) - bases <= FACTS
