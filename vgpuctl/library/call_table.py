# SPDX-License-Identifier: Apache-2.0
"""The calls of the library by name: what each takes and returns. The host agent's API and JSON Schemas follow from it.

A call's name is its method's, with hyphens: `GpuHost.create_vm` is `create-vm`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, Required, get_args, get_origin, get_type_hints, is_typeddict

from vgpuctl.errors import InvalidInput
from vgpuctl.library import GpuHost, fields
from vgpuctl.model import results
from vgpuctl.model import usage as uses
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.result_reader import Mismatch, read_value
from vgpuctl.model.results import advice, deleted_disks, gpus, host, jobs, migration, moves, techniques, usage, vms
from vgpuctl.value import Value

_NAMES: dict[str, Any] = {
    **{
        name: value
        for module in (
            results,
            advice,
            deleted_disks,
            gpus,
            host,
            jobs,
            migration,
            moves,
            techniques,
            usage,
            uses,
            vms,
            fields,
        )
        for name, value in vars(module).items()
    },
    "Mapping": Mapping,
    "Outcome": Outcome,
    "QueryResult": QueryResult,
    "Sequence": Sequence,
    "vm_results": vms,
}
"""What annotations of calls name; their own modules import much of it for type checkers alone."""


class Parameter(Value):
    """An argument of a call. `several`: it takes any number of values of its type, as in `show_vms(*names)`."""

    name: str
    type: Any
    required: bool
    several: bool = False

    def read(self, value: object) -> Any:
        """Return a JSON value as this argument.

        Raises:
            Mismatch: it has another type.
        """
        kind: Any = self.type
        return read_value(Sequence[kind] if self.several else kind, value, self.name)


class LibraryCall(Value):
    """One call. `changes`: it may change the host; then it is an operation, with steps, progress and an audit entry.

    `about`: what its first argument names, where that is one VM or one GPU.
    """

    name: str
    method: Callable[..., Any]
    changes: bool
    about: Literal["vm", "gpu"] | None = None

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return (inspect.getdoc(self.method) or "").partition("\n")[0]

    @property
    def result_type(self) -> Any:
        """The type of what it returns, with its arguments."""
        return _resolve(self.method.__annotations__["return"])

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its arguments by name, in order; fields of a VM are arguments like the others."""
        return _parameters(self.method)

    def read_arguments(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return arguments that came as JSON, checked: every name is known, every value has its type.

        Raises:
            InvalidInput: what is wrong, with all names that it takes.
        """
        parameters = self.parameters
        unknown = sorted(given.keys() - parameters.keys())
        if unknown:
            takes = ", ".join(parameters) or "no arguments"
            raise InvalidInput(f"{self.name}: {', '.join(unknown)}: not known; it takes {takes}", fields=unknown)
        missing = sorted(name for name, one in parameters.items() if one.required and name not in given)
        if missing:
            raise InvalidInput(f"{self.name}: {', '.join(missing)}: missing", fields=missing)
        try:
            return {name: parameters[name].read(value) for name, value in given.items()}
        except Mismatch as mismatch:
            raise InvalidInput(f"{self.name}: {mismatch}") from mismatch

    def on(self, host: GpuHost, arguments: Mapping[str, Any]) -> Outcome[Any] | QueryResult[Any] | Any:
        """Make the call. `arguments`: from `read_arguments`."""
        several = next((name for name, one in self.parameters.items() if one.several), None)
        values = arguments.get(several, ()) if several is not None else ()
        named = {name: value for name, value in arguments.items() if name != several}
        return self.method(host, *values, **named)


@functools.cache
def _parameters(method: Callable[..., Any]) -> Mapping[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for parameter in [*inspect.signature(method).parameters.values()][1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            record = _NAMES[str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")]
            if not is_typeddict(record):
                raise TypeError(f"{method.__qualname__}: {parameter.annotation}")
            for name, kind in get_type_hints(record, include_extras=True).items():
                is_required = get_origin(kind) is Required
                parameters[name] = Parameter(name, get_args(kind)[0] if is_required else kind, is_required)
            continue
        several = parameter.kind is parameter.VAR_POSITIONAL
        required = parameter.default is parameter.empty and not several
        parameters[parameter.name] = Parameter(parameter.name, _resolve(parameter.annotation), required, several)
    return parameters


def _resolve(annotation: object) -> Any:
    return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), _NAMES)["it"]


def _find_calls() -> Mapping[str, LibraryCall]:
    methods = {name: getattr(GpuHost, name) for name in dir(GpuHost) if not name.startswith("_")}
    return {
        name.replace("_", "-"): LibraryCall(name.replace("_", "-"), method, method.changes, method.about)
        for name, method in methods.items()
        if hasattr(method, "changes")
    }


CALLS: Mapping[str, LibraryCall] = _find_calls()
"""Every call by name."""
