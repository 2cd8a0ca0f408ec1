# SPDX-License-Identifier: Apache-2.0
"""The options of the Ansible modules, generated from vgpuctl's own: OPTION_FIELDS, and the options of each command.

This module generates two files of the collection: the modules' options (`module_utils/options.py`), and their
documentation (`doc_fragments/options.py`). vgpuctl is the only source of names, help texts, examples and choices.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from vgpuctl.cli.command import cli
from vgpuctl.config.vm_fields import VmField
from vgpuctl.config.vm_request import OPTION_FIELDS

COLLECTION = Path(__file__).resolve().parents[2] / "ansible/ansible_collections/vgpuctl/vgpuctl"
COMMANDS = {"vgpu": "ensure-vgpu", "gpu_mode": "set-mode", "scheduler": "set-scheduler"}
"""Module -> the command whose options it has. `vm` has the fields of a VM's spec file."""

RAW = ("gpu", "networks")
"""Fields that Ansible must not convert.

A GPU, so that a module can detect an address that YAML made a number, and networks: names, mappings, or a list
of them, and Ansible would split a name's options at the comma.
"""

HEAD = '''\
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""%s Made from the program by tests/ansible: do not edit."""

from __future__ import annotations

'''


class Option:
    """One option of a module: its type, choices and documentation."""

    def __init__(self, name: str, takes: dict[str, Any], help_lines: list[str]) -> None:
        self.name, self.takes, self.help_lines = name, takes, help_lines


def files() -> dict[Path, str]:
    """Return the text of each generated file."""
    tables = {"vm": [_field(f) for f in OPTION_FIELDS]}
    tables |= {module: list(_of_command(command)) for module, command in COMMANDS.items()}
    specs = HEAD % "What the modules take."
    fragments = HEAD % "The documentation of the modules' options." + "\nclass ModuleDocFragment:\n"
    fragments += '    """One fragment for each module."""\n'
    for module, options in tables.items():
        table = {option.name: option.takes for option in options}
        lines = [f"    {_python(name)}: {_python(takes)},\n" for name, takes in table.items()]
        specs += f"{module.upper()} = {{\n{''.join(lines)}}}\n"
        fragments += f'\n    {module.upper()} = r"""\noptions:\n{"".join(map(_documented, options))}"""\n'
    plugins = COLLECTION / "plugins"
    return {plugins / "module_utils/options.py": specs, plugins / "doc_fragments/options.py": fragments}


def _python(value: object) -> str:
    """Return a value in the formatter's style."""
    return json.dumps(value).replace("true", "True").replace("false", "False")


def _field(field: VmField) -> Option:
    takes: dict[str, Any] = {"type": "bool" if field.is_flag else "int" if field.is_number else "str"}
    if field.name in RAW:
        takes = {"type": "raw"}
    elif "Mapping[str, str]" in field.argument_type:
        takes = {"type": "dict"}
    elif field.repeatable:
        takes = {"type": "list", "elements": "str"}
    if field.choices:
        takes["choices"] = list(field.choices)
    lines = [_sentence(field.help.replace("; repeatable", "").replace("repeat it ", "a list "))]
    if field.name in ("gpu", "not_gpu"):
        lines.append("Quote an address: YAML reads some as numbers.")
    if field.default_text:
        from_file = "what C(defaults) of host.yaml says, or " if field.in_defaults else ""
        lines.append(f"Without it, {from_file}V({field.default_text}).")
    if field.example and not field.choices:
        lines.append(f"For example V({field.example}).")
    return Option(field.name, takes, lines)


def _of_command(name: str) -> Iterator[Option]:
    """Yield the options of a command, except --dry-run, for which Ansible has check mode."""
    fields = {f.name: f for f in OPTION_FIELDS}
    for parameter in cli.load(name).params:
        key = str(parameter.name)
        if key == "dry_run" or key.startswith("global_"):
            continue
        if key == "gpus":  # a module sets one GPU up, or all; a command also several
            option = _field(fields["gpu"])
            option.help_lines[0] = "The GPU, by address or by model. Specify either O(gpu) or O(all)."
            yield option
            continue
        if key == "everything":
            yield Option("all", {"type": "bool"}, ["Every GPU of the host."])
            continue
        if key in ("gpu", "not_gpu", "numa_node", "vgpu_params"):
            option = _field(fields[key])
            if key == "gpu" and not getattr(parameter, "multiple", False):
                option.help_lines[0] = "The GPU, by address or by model."
        else:
            option = Option(key, _type(parameter), [_sentence(getattr(parameter, "help", "") or ARGUMENTS[name, key])])
        if parameter.required:
            option.takes["required"] = True
        yield option


ARGUMENTS = {
    ("ensure-vgpu", "name"): "the vGPU's name",
    ("set-mode", "mode"): "what the GPU is set up for; unmanaged: vgpuctl places nothing there",
}
"""The help texts of positional arguments; the command line has none for them."""


def _type(parameter: click.Parameter) -> dict[str, Any]:
    if isinstance(parameter.type, click.Choice):
        takes: dict[str, Any] = {"type": "str", "choices": [str(c) for c in parameter.type.choices]}
        if isinstance(parameter.default, str):
            takes["default"] = parameter.default
        return takes
    if isinstance(parameter.type, click.types.IntRange):
        return {"type": "int"}
    if getattr(parameter, "is_flag", False):
        return {"type": "bool", "default": False}
    return {"type": "str"}


def _sentence(text: str) -> str:
    """Return a help text as a sentence, with the module's option names instead of the command line's."""
    text = re.sub(r" \[[^\]]*\]$", "", text.strip()).rstrip(".")
    text = re.sub(r"--([a-z-]+)", lambda match: f"O({match[1].replace('-', '_')})", text)
    first = text.split()[0]
    capital = text if first.endswith(":") or not first.islower() else text[0].upper() + text[1:]
    return capital + "."


def _documented(option: Option) -> str:
    lines = [f"  {option.name}:"]
    for key, value in option.takes.items():
        shown = f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
        lines.append(f"    {key}: {shown.lower() if isinstance(value, bool) else shown}")
    lines.append("    description:")
    for text in option.help_lines:
        quoted = "'" + text.replace("'", "''") + "'"
        lines += textwrap.wrap(quoted, 110, initial_indent="      - ", subsequent_indent="        ")
    return "\n".join(lines) + "\n"
