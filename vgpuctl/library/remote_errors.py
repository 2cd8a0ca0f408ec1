# SPDX-License-Identifier: Apache-2.0
"""The errors that an agent, or vgpuctl on another host, reports, as the library would raise them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vgpuctl.errors import (
    Interrupted,
    VgpuctlError,
)
from vgpuctl.library.call_table import LibraryCall
from vgpuctl.model.documents import Failure
from vgpuctl.model.result_reader import Mismatch, read_result
from vgpuctl.value import EMPTY_MAPPING


def error_of(
    failure: Failure, call: LibraryCall | None = None, document: Mapping[str, Any] = EMPTY_MAPPING
) -> VgpuctlError:
    """Return the error that a document of a call reports, of the class that the library would raise."""
    error: VgpuctlError
    kind = _ERRORS.get(failure.code, VgpuctlError)
    if failure.code == Interrupted.code:
        error = Interrupted(failure.message, signal_number=max(1, failure.status - 128), hint=failure.hint)
    else:
        error = kind(failure.message, hint=failure.hint)
        error.status = failure.status if 1 <= failure.status <= 255 else 1
    if error.code != failure.code:
        error.code = failure.code  # type: ignore[misc]  # an error that this version does not know
    error.facts = dict(failure.facts)
    error.undone, error.left = list(failure.undone), list(failure.left)
    error.changed = document.get("changed") is True
    if call is not None and "data" in document:
        try:
            error.result = read_result(call.result_type, document)
        except Mismatch:
            error.result = None
    return error


def _all_errors(kind: type[VgpuctlError]) -> Iterator[type[VgpuctlError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _all_errors(subclass)


def _classes_by_code() -> dict[str, type[VgpuctlError]]:
    classes: list[type[VgpuctlError]] = [VgpuctlError, *_all_errors(VgpuctlError)]
    return {one.code: one for one in reversed(classes) if one is not Interrupted}


_ERRORS = _classes_by_code()
