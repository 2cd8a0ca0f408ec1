# SPDX-License-Identifier: Apache-2.0
"""The global options reach the command whatever click says of them while it parses, or the command refuses."""

from __future__ import annotations

import copy

import click
import pytest

from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, cli, load_command
from vgpuctl.cli.global_options import Settings, global_options
from vgpuctl.errors import HostCannot

LINES = [
    "--host sim:t4 {}", "{} --host sim:t4", "--host=sim:t4 {}", "--root /captured {}", "{} --root /captured",
    "-y {}", "{} --yes", "-o yaml {}", "{} -o yaml", "--json {}", "{} --json", "--wait 0 {}", "{} -v",
    "--host ssh://gpu{{1..3}} {}", "{} --host ssh://a --host ssh://b", "--connect test:///default {}",
    "{} --host-deadline 0", "{} --color always --progress",
    "--override-controller {}", "{} --override-controller",
]  # fmt: skip
DEFAULTS = vars(Settings())
COMMANDS = [words.partition(" ")[2] for words, command in walk_commands() if not isinstance(command, LazyGroup)]


class SilentContext(click.Context):
    """A context that does not say where a parameter's value came from, as click 8.4.0's while it parses."""

    def get_parameter_source(self, name: str) -> None:  # type: ignore[override]
        """Answer nothing."""


class _Silent(LazyGroup):
    context_class = SilentContext


def silent_program() -> click.Command:
    """Return the program as click 8.4.0 runs it."""

    def load(name: str) -> click.Command:
        command = copy.copy(load_command(name))
        command.context_class = SilentContext
        return command

    return _Silent(
        "vgpuctl", headings=cli.headings, load=load, params=global_options(), context_settings=CONTEXT_SETTINGS
    )


def settings_of(program: click.Command, line: str) -> dict[str, object]:
    """Return the settings that `diff` would get; it takes no arguments."""
    settings = Settings()
    words = line.format("diff").split()
    with program.make_context("vgpuctl", words, obj=settings) as context:
        index = words.index("diff")
        command = program.get_command(context, "diff") if isinstance(program, click.Group) else None
        assert command is not None
        with command.make_context("diff", words[index + 1 :], parent=context) as inner:
            assert not [name for name in (*context.params, *inner.params) if name.startswith("global_")]
    return vars(settings)


@pytest.mark.parametrize("line", LINES)
def test_options_are_taken_from_what_was_parsed_not_from_what_click_says_during_it(line: str) -> None:
    settings = settings_of(silent_program(), line)
    assert settings == settings_of(cli, line)
    assert settings != DEFAULTS


def test_vgpuctl_host_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPUCTL_HOST", "sim:a host's file.yaml")
    assert settings_of(silent_program(), "{}")["host"] == "sim:a host's file.yaml"
    assert settings_of(silent_program(), "{} --host sim:t4")["host"] == "sim:t4"
    monkeypatch.setenv("VGPUCTL_HOST", "")
    assert settings_of(silent_program(), "{}") == DEFAULTS


TARGETS = ["--host ssh://gpu1", "--host=sim:t4", "--host ssh://gpu{1..3}", "--root /captured", "--connect test:///x"]


@pytest.mark.parametrize(
    ("command", "given"),
    [*((command, TARGETS[0]) for command in COMMANDS), *(("diff", given) for given in TARGETS[1:])],
)
def test_a_command_whose_target_was_lost_refuses(command: str, given: str) -> None:
    settings = Settings()
    settings.args = (*given.split(), *command.split())
    with pytest.raises(HostCannot) as raised:
        _run_unparsed(command, settings)
    assert given.replace("=", " ") in raised.value.message
    assert "would work on local; nothing was done" in raised.value.message
    assert "pip install --upgrade click" in str(raised.value.hint)


@pytest.mark.parametrize("command", ["list-gpus", "sim reset"])
def test_a_command_that_lost_vgpuctl_host_refuses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    settings.args = tuple(command.split())

    monkeypatch.setenv("VGPUCTL_HOST", "ssh://gpu1")
    with pytest.raises(HostCannot, match="VGPUCTL_HOST=ssh://gpu1 was given"):
        _run_unparsed(command, settings)


def _run_unparsed(command: str, settings: Settings) -> None:
    """Run a command as if click had parsed its name and nothing else."""
    current: click.Command = cli
    context = click.Context(cli, info_name="vgpuctl", obj=settings)
    for name in command.split():
        assert isinstance(current, LazyGroup)
        inner = current.get_command(context, name)
        assert inner is not None
        current, context = inner, click.Context(inner, parent=context, info_name=name)
    current.invoke(context)


@pytest.mark.parametrize(
    "line",
    ["--host sim:t4 show-vm -- --host=b", "--host sim:t4 create-vm a --profile T4-1Q --label --host=b --dry-run",
     "--host local list-gpus --host=sim:t4", "--root / --host sim:t4 sim reset --host sim:t4 --yes"],
)  # fmt: skip
def test_what_only_looks_like_a_host_is_none(vgpuctl: Run, line: str) -> None:
    assert "did not pass it on" not in vgpuctl(*line.split()).err
