# SPDX-License-Identifier: Apache-2.0
"""The fields of a VM spec as options: name, help, example and choices come from `config/vm_request.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from vgpuctl.cli import complete
from vgpuctl.config import vm_request as table
from vgpuctl.config.vm_fields import VmField
from vgpuctl.config.vm_request import CHANGE_FIELDS, FIELDS, OPTION_FIELDS
from vgpuctl.model import file_content

_COMPLETIONS: dict[str, Any] = {"profile": complete.profiles, "gpu": complete.gpus, "not_gpu": complete.gpus}
CONSTRAINT_FIELDS = tuple(name for name in table.CONSTRAINT_FIELDS if name != "spread_group")
"""Constraints on the GPU of a vGPU that is added later or has no VM: only a new VM can join a spread group."""

PATH_FIELDS = tuple(name for name, field in FIELDS.items() if field.is_path)
"""Fields that are one path. `disk` takes sizes too, so a disk's path always begins with /."""

OptionDecorator = Callable[[Callable[..., int]], Callable[..., int]]


def all_fields(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of every field."""
    return _add_options(function, [_option(field) for field in OPTION_FIELDS])


def fields(*names: str, required: tuple[str, ...] = ()) -> OptionDecorator:
    """Return a decorator that adds the options of these fields."""
    return lambda function: _add_options(function, [_option(FIELDS[n], required=n in required) for n in names])


def changes(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the fields that can change in a VM that exists: what is not given stays."""
    return _add_options(function, [_option(FIELDS[name], changing=True) for name in CHANGE_FIELDS])


def with_absolute_paths(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the options' values; a path that is relative to the working directory becomes absolute."""
    return {name: absolute_path(value) if name in PATH_FIELDS else value for name, value in fields.items()}


def absolute_path(path: str | None) -> str | None:
    """Return a path as it is or, if it is relative, below the working directory.

    The rules refuse an empty one, and content.
    """
    if not path or path.startswith("/") or file_content.is_file_content(path):
        return path
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was removed
        return path


def _add_options(function: Callable[..., int], options: list[click.Option]) -> Callable[..., int]:
    """Add options to a command's function; click collects them in reverse."""
    params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    params += reversed(options)
    return function


def _option(field: VmField, *, required: bool = False, changing: bool = False) -> click.Option:
    """Return the option of one field; its value stays text, and the spec's rules check it.

    `changing`: it changes a VM that exists, so it has no default, and a flag can be taken back. The help says where it
    does so at any time.
    """
    text = (changing and field.change_help) or field.help
    first_word = text.split()[0]
    text = text if first_word.endswith(":") or not first_word.islower() else text[0].upper() + text[1:]
    text = text.rstrip(".") + "."
    note = ("at any time" if field.changes == "any" else "") if changing else field.default_text
    text = f"{text} [{note}]" if note else text
    arguments: dict[str, Any] = {"help": text, "required": required}
    spelling = field.option
    if field.is_flag:
        arguments |= {"is_flag": True, "default": None}
        spelling += f"/--no-{spelling[2:]}" if changing else ""
    elif field.choices:
        arguments["type"] = click.Choice(field.choices)
    else:
        arguments["metavar"] = field.metavar or None
    if field.optional_value:
        arguments |= {"is_flag": False, "flag_value": field.optional_value}
    if field.repeatable:
        arguments["multiple"] = True
    return click.Option([spelling, field.name], shell_complete=_COMPLETIONS.get(field.name), **arguments)
