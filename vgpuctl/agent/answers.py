# SPDX-License-Identifier: Apache-2.0
"""What an agent's answers say, as the library would: results, progress, and what a cancelled operation left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.errors import DeadlineExceeded, ResultUnknown
from vgpuctl.library.call_table import LibraryCall
from vgpuctl.model.documents import read_failure
from vgpuctl.model.result_reader import Mismatch, read_result, read_value


def read_answer(kind: Any, value: object) -> Any:
    """Return a JSON value of the agent as a type.

    Raises:
        ResultUnknown: it has another form.
    """
    try:
        return read_value(kind, value)
    except Mismatch as mismatch:
        raise ResultUnknown(
            f"the host agent's answer has another form: {mismatch}",
            hint="the agent is of another version: systemctl restart vgpuctl-agent",
        ) from mismatch


def result_in(call: LibraryCall, document: Mapping[str, Any]) -> Any:
    """Return the result in a document, as the library's method would.

    Raises:
        ResultUnknown: it has another form.
    """
    kind = call.result_type
    try:
        if "Outcome" in str(kind) or "QueryResult" in str(kind):
            return read_result(kind, document)
        return read_answer(kind, document["data"])
    except (Mismatch, KeyError) as mismatch:
        raise ResultUnknown(
            f"{call.name}: the host agent's answer has another form: {mismatch}",
            hint="the agent is of another version: systemctl restart vgpuctl-agent",
        ) from mismatch


def with_remains(late: DeadlineExceeded, document: Mapping[str, Any]) -> DeadlineExceeded:
    """Return the error of an operation that was cancelled at its deadline, with what the cancelled one reports."""
    error = document.get("error")
    failure = read_failure(error if isinstance(error, dict) else {})
    late.undone, late.left = list(failure.undone), list(failure.left)
    late.changed = document.get("changed") is True
    return late


def pass_on(progress: Any, kind: str, data: Mapping[str, Any]) -> None:
    """Report an event of an operation to the caller's progress."""
    if kind == "plan":
        progress.on_plan(tuple(data["steps"]))
    elif kind == "step-start":
        progress.on_step_start(data["number"], data["text"])
    elif kind == "step-progress":
        progress.on_step_progress(data["number"], data["text"], data["percent"])
    elif kind == "step-finish":
        progress.on_step_finish(data["number"], data["text"])
    elif kind == "step-undo":
        progress.on_step_undo(data["text"])
    elif kind == "vm-finish":
        progress.on_vm_finish(data["done"], data["total"], data["failed"], data["text"])
