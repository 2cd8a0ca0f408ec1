# SPDX-License-Identifier: Apache-2.0
"""Generates command lines from click's own tree of commands and options. They reach only simulated hosts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import click

from tests.fuzz import odd
from vgpuctl.cli.command import load_command
from vgpuctl.config.vm_request import CHANGE_FIELDS

FAR = frozenset({"--host", "--connect", "--host-deadline", "--hosts-at-a-time", "--root"})
"""Options that select a host other than the simulated one."""
WAITING = frozenset({"--wait", "--timeout", "--wait-timeout", "--deadline"})
"""Options that set a waiting time. A case would really wait that long."""
NO_WAITING = {"wait": ("--timeout", "0"), "--wait-for": ("--wait-timeout", "0"), "run": ("--metrics", "none")}
"""Words that end at once what waits for minutes by default, or for ever: the agent."""
KNOWN = (
    "vdi-1",
    "vdi-2",
    "vdi-9",
    "A100-4C",
    "A100-8C:2",
    "A100-40C",
    "4C",
    "0000:3b:00.0",
    "0000:3b:00.4",
    "A100",
    "all",
    "default",
    "2",
    "20GiB",
    "vgpu",
    "sriov",
    "off",
    "on",
    "best_effort",
    "1g.5gb",
    "depth",
    "web",
    "given.yaml",
    "/nowhere/x",
    ".",
    "-",
    "",
    "vdi-{:03}",
    "bash",
)


FITTING: dict[str, tuple[str, ...]] = {
    "name": ("vdi-1", "vdi-2", "vdi-9"),
    "vm": ("vdi-1", "vdi-2"),
    "gpu": ("0000:3b:00.0", "A100"),
    "profile": ("A100-4C", "A100-8C:2"),
    "path": ("given.yaml",),
    "count": ("2", "3"),
    "memory": ("2GiB",),
    "vcpus": ("2",),
    "policy": ("best_effort", "equal_share"),
    "labels": ("team=cad", "old-"),
    "owner": ("ada", ""),
    "networks": ("default", "none", "bridge=br0,vlan=3"),
    "hugepages": ("2MiB", "none"),
    "cpu_pin": ("auto", "none", "0-3"),
    "numa": ("0", "1"),
}
"""Valid values for a parameter whose name contains this word."""


def made(rng: Random, place: Path) -> tuple[str, ...]:
    """Return a command with some of its options and arguments, and some unrelated words."""
    from vgpuctl.cli.command import cli

    (place / "given.yaml").write_bytes(odd.yaml_text(rng, {"version": 1, "profile": "A100-4C"}))
    context = click.Context(cli)
    name = rng.choice(cli.list_commands(context))
    chosen = cli.get_command(context, name)
    assert chosen is not None
    words = [name]
    if isinstance(chosen, click.Group):
        name = rng.choice(chosen.list_commands(context))
        words.append(name)
        chosen = chosen.get_command(context, name) or chosen
    if rng.random() < 0.7:
        words += ["--yes"]
    for parameter in chosen.params:
        words += _words_for(rng, parameter)
    words += [word for waits, ends in NO_WAITING.items() if waits in words for word in ends]
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), _value(rng))
    if rng.random() < 0.05:
        words = words[: rng.randrange(len(words) + 1)]
    return tuple(word for word in words if word.partition("=")[0] not in FAR and not word.startswith(("ssh:", "local")))


def change(rng: Random) -> tuple[str, ...]:
    """Return a set-vm with one to six of its fields, valid or not: of a VM that runs or is off."""
    options = [p for p in load_command("set-vm").params if p.name in CHANGE_FIELDS]
    line = ["set-vm", rng.choice(("vdi-1", "vdi-2", "vdi-2", "vdi-9")), *rng.choice(((), ("--yes",)))]
    line += [word for word in ("--drain", "--dry-run") if rng.random() < 0.3]
    for option in rng.sample(options, rng.randint(1, 6)):
        name = rng.choice([*option.opts, *option.secondary_opts])
        line += [name] if option.is_bool_flag else [name, _value(rng, option)]  # type: ignore[attr-defined]
    return tuple(line)


def _words_for(rng: Random, parameter: click.Parameter) -> list[str]:
    if isinstance(parameter, click.Argument):
        least = 1 if parameter.required else 0
        return [_value(rng, parameter) for _ in range(rng.choice((1, 1, 1, 1, 1, 1, least, 2)))]
    name = rng.choice([*parameter.opts, *parameter.secondary_opts])
    if name in FAR or name in WAITING or name in ("--help", "--version", "-v", "--verbose") or rng.random() < 0.8:
        return []
    if getattr(parameter, "is_flag", False):
        return [name]
    return [word for _ in range(rng.choice((1, 1, 2))) for word in (name, _value(rng, parameter))]


def _value(rng: Random, parameter: click.Parameter | None = None) -> str:
    if parameter is not None and isinstance(parameter.type, click.Choice) and rng.random() < 0.8:
        return str(rng.choice(list(parameter.type.choices)))
    name = "" if parameter is None else str(parameter.name)
    fitting = [one for word, values in FITTING.items() if word in name for one in values]
    if fitting and rng.random() < 0.8:
        return rng.choice(fitting)
    return rng.choice(KNOWN) if rng.random() < 0.6 else odd.text(rng, rng.choice(KNOWN)).replace("\0", "")[:100_000]
