# SPDX-License-Identifier: Apache-2.0
"""The spec's fields as options: name, help, example and choices are those of `spec/fields.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vgpuctl.cli import complete
from vgpuctl.spec import fields as table
from vgpuctl.spec.fields import FIELD, VM_FIELDS, SpecField

_COMPLETIONS: dict[str, Any] = {"profile": complete.profiles, "gpu": complete.gpus, "not_gpu": complete.gpus}
WHERE = tuple(name for name in table.WHERE if name != "spread_group")
"""Where a vGPU goes that comes later, or has no VM: only a new VM is put into a spread group."""

Adds = Callable[[Callable[..., int]], Callable[..., int]]


def every_field(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of every field."""
    return _added(function, [_option(field) for field in VM_FIELDS if field.option])


def fields(*names: str, required: tuple[str, ...] = ()) -> Adds:
    """Return a decorator that adds the options of these fields."""
    return lambda function: _added(function, [_option(FIELD[n], required=n in required) for n in names])


def _added(function: Callable[..., int], options: list[click.Option]) -> Callable[..., int]:
    """Add options to a command's function; click collects them in reverse."""
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params += reversed(options)
    return function


def _option(field: SpecField, *, required: bool = False) -> click.Option:
    """Return the option of one field; its value stays text, the spec's rules judge it."""
    word = field.help.split()[0]
    text = field.help if word.endswith(":") or not word.islower() else field.help[0].upper() + field.help[1:]
    text = text.rstrip(".") + "."
    if field.built_in not in (None, False):
        text = f"{text} [{field.built_in}]"
    arguments: dict[str, Any] = {"help": text, "required": required}
    if field.flag:
        arguments["is_flag"] = True
    elif field.choices:
        arguments["type"] = click.Choice(field.choices)
    else:
        arguments["metavar"] = field.metavar or None
    if field.repeatable:
        arguments["multiple"] = True
    return click.Option([field.option, field.name], shell_complete=_COMPLETIONS.get(field.name), **arguments)
