# SPDX-License-Identifier: Apache-2.0
"""Parsing: global options before and after the command, wrong words, and one JSON document for any command line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Ran, Run, child, child_environment
from vgpuctl import __version__
from vgpuctl.cli.command import Command, cli
from vgpuctl.cli.command_table import COMMAND_GROUPS
from vgpuctl.cli.global_options import Settings

TREE = dict(walk_commands())


def parsed(*words: str) -> Settings:
    """Return the settings after parsing a whole line, without running it."""
    settings = Settings()
    with cli.make_context("vgpuctl", list(words), obj=settings) as context:
        left = getattr(context, "_protected_args", None) or getattr(context, "protected_args", [])  # click 8.1
        name, command, rest = cli.resolve_command(context, list(words)[-len(left + context.args) :])
        assert command is not None
        with command.make_context(name, rest, parent=context):
            pass
    return settings


@pytest.mark.parametrize("words", sorted(TREE))
def test_every_command_has_a_page_of_help(vgpuctl: Run, words: str) -> None:
    ran = vgpuctl(*words.split()[1:], "--help")
    assert ran.status == 0
    assert ran.out.startswith(f"Usage: {words}")
    assert "--json" in ran.out
    if isinstance(TREE[words], Command):
        assert "Examples:" in ran.out
        assert "Options of every command:" in ran.out
        assert all(line in ran.out for line, _ in TREE[words].examples)


def test_the_first_page_lists_every_command_once_under_a_heading_in_80_columns(vgpuctl: Run) -> None:
    page = vgpuctl("--help").out
    for heading, group in COMMAND_GROUPS.items():
        listed = page.partition(f"\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == list(group)
    assert max(map(len, page.splitlines())) <= 80


def test_a_page_names_the_options_of_every_command_without_their_help(vgpuctl: Run) -> None:
    page = vgpuctl("stop-vm", "--help").out
    assert page.index("--force") < page.index("Options of every command: --host ")
    assert "VGPUCTL_HOST" not in page
    assert "--hosts-at-a-time" in page


def test_short_help_option(vgpuctl: Run) -> None:
    assert vgpuctl("-h").out == vgpuctl("--help").out


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(vgpuctl: Run, option: str) -> None:
    assert vgpuctl(option) == Ran(0, f"vgpuctl {__version__}\n", "")


def test_python_dash_m() -> None:
    assert child("--version").stdout == f"vgpuctl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--host", "sim:t4"], "host", "sim:t4"),
        (["--root", "/captured"], "root", "/captured"),
        (["--connect", "test:///default"], "connect", "test:///default"),
        (["--json"], "json", True),
        (["--yes"], "yes", True),
        (["-y"], "yes", True),
        (["--wait", "2.5"], "wait", 2.5),
        (["--wait", "7s"], "wait", 7.0),
        (["--wait", "0"], "wait", 0.0),
        (["-v"], "verbose", True),
        (["--verbose"], "verbose", True),
    ],
)
def test_global_options_before_and_after_the_command(words: list[str], field: str, value: object) -> None:
    assert getattr(parsed(*words, "list-gpus"), field) == value
    assert getattr(parsed("list-gpus", *words), field) == value


def test_what_is_typed_after_the_command_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPUCTL_HOST", "sim:a16")
    assert parsed("list-gpus").host == "sim:a16"
    assert parsed("--host", "local", "list-gpus").host == "local"
    assert parsed("--host", "local", "list-gpus", "--host", "sim:t4").host == "sim:t4"


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("create vm", "did you mean 'vgpuctl create-vm'?"),
        ("vm create", "did you mean 'vgpuctl create-vm'?"),
        ("list gpus", "did you mean 'vgpuctl list-gpus'?"),
        ("gpu list", "did you mean 'vgpuctl list-gpus'?"),
        ("list_vms", "did you mean 'vgpuctl list-vms'?"),
        ("list-vm", "did you mean 'vgpuctl list-vms'?"),
        ("destroy-vm x", "did you mean 'vgpuctl delete-vm'?"),
        ("types", "did you mean 'vgpuctl list-profiles'?"),
        ("restart-vm x", "did you mean 'vgpuctl reboot-vm'?"),
        ("shutdown-vm x", "did you mean 'vgpuctl stop-vm'?"),
        ("set-mode 0000:3b:00.0 passthroug", "did you mean 'passthrough'?"),
        ("set-mixed-size 0000:3b:00.0 of", "did you mean 'off'?"),
        ("wait x --for runing", "did you mean 'running'?"),
        ("list-vms --watch", "watch vgpuctl list-vms"),
        ("list-vms --hosts gpus.ini", "--host 'ssh://gpu{01..20}'"),
        ("set-scheduler all --policy equal_share --via modprobe", "/etc/modprobe.d"),
        ("CREATE-VM", "did you mean 'vgpuctl create-vm'?"),
        ("sim rebot", "did you mean 'vgpuctl sim reboot'?"),
        ("frobnicate", "'vgpuctl --help' lists the commands"),
        ("help", "it is an option: vgpuctl --help"),
        ("help create-vm", "it is an option: vgpuctl create-vm --help"),
        ("version", "it is an option: vgpuctl --version"),
        ("list-gpus --format json", "did you mean --output?"),
        ("create-vm vdi-001 A100-4C", "vgpuctl create-vm NAME --profile A100-4C"),
        ("create-vm --profil A100-4C", "did you mean --profile?"),
        ("create-vm --ram 4096", "did you mean --memory?"),
        ("create-vm --hotplug_slots 4", "did you mean --hotplug-slots?"),
        ("create-vm --name vdi-001", "vgpuctl create-vm NAME"),
        ("delete-vm vdi-001 --dryrun", "did you mean --dry-run?"),
        ("create-vm --mode mdev", "--mode: 'mdev' is not one of 'vgpu', 'sriov', 'passthrough'"),
        ("list-gpus --wait soon", "--wait: 'soon' is not a number of seconds"),
        ("list-gpus --wait -1", "--wait: '-1' is not a number of seconds"),
        ("list-gpus --wait nan", "--wait: 'nan' is not a number of seconds"),
        ("list-profiles --gpu", "vgpuctl list-profiles --help"),
        ("list-vms --owner sales", "vgpuctl list-vms --filter owner=NAME"),
        ("list-vms --label team=cad", "vgpuctl list-vms --filter labels=KEY=VALUE"),
        ("explain", "PROFILE is missing"),
        ("ensure-vm", "--file is missing"),
        ("set-scheduler A100 fixed_share", "vgpuctl set-scheduler A100 --policy fixed_share"),
        ("set-scheduler A100", "'vgpuctl set-scheduler --help' shows the usage"),
        ("log desk-01", "vgpuctl log --vm desk-01"),
        ("explain a b", "unexpected extra argument"),
        ("delete-vm", "name one or several, --all, --label"),
        ("", "a command is missing"),
        ("sim", "a command is missing"),
        ("completion tcsh", "SHELL: 'tcsh' is not one of"),
    ],
)
def test_wrong_words_get_a_suggestion(vgpuctl: Run, line: str, output: str) -> None:
    ran = vgpuctl(*line.split())
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith("vgpuctl: ")
    assert "[usage]" in ran.err
    assert output in ran.err


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("--json", "vgpuctl"),
        ("frobnicate --json", "vgpuctl"),
        ("--json list-gpus --foo", "list-gpus"),
        ("create-vm --foo --json", "create-vm"),
        ("sim --json nothing", "sim"),
        ("sim reset --foo --json", "sim-reset"),
        ("show-vm --json", "show-vm"),
    ],
)
def test_usage_errors_are_one_document_too(vgpuctl: Run, line: str, kind: str) -> None:
    ran = vgpuctl(*line.split())
    assert ran.status == 2
    assert ran.err == ""
    assert ran.document["kind"] == kind
    assert ran.document["ok"] is False
    assert ran.document["error"]["code"] == "usage"
    assert ran.document["error"]["exit_status"] == 2


def test_json_after_two_dashes_is_a_name(vgpuctl: Run) -> None:
    ran = vgpuctl("explain", "--", "a", "--json")
    assert ran.status == 2
    assert ran.out == ""


def test_the_table_and_the_commands_agree() -> None:
    for words, command in TREE.items():
        assert command.name == words.split()[-1]
        assert isinstance(command, click.Command)
        assert command.short_help
        assert (command.help or "").strip()


def test_an_undecodable_word_is_no_traceback() -> None:
    ran = child("show-vm", b"\xff\xfe".decode("utf-8", "surrogateescape"), "--bogus")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


SPY = """
import runpy, sys, _signal

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "vgpuctl.cli":
            print(_signal.getsignal(_signal.SIGINT) is _signal.SIG_DFL)
            sys.exit(0)

sys.meta_path.insert(0, Spy())
_signal.signal(_signal.SIGINT, _signal.default_int_handler)  # as at a terminal; in the background it may be ignored
"""


@pytest.mark.parametrize(
    "run",
    ["from vgpuctl.__main__ import main; main()", "runpy.run_module('vgpuctl', run_name='__main__')"],
    ids=["vgpuctl", "python-m"],
)
def test_ctrl_c_before_anything_of_the_program_is_loaded_is_no_traceback(run: str) -> None:
    ran = subprocess.run([sys.executable, "-c", SPY + run], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_the_console_script_runs_the_program() -> None:
    (script,) = (point for point in entry_points(group="console_scripts") if point.name == "vgpuctl")
    with (Path(__file__).parents[3] / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"vgpuctl": script.value}
    code = f"import sys; from {script.module} import {script.attr}; sys.exit({script.attr}())"
    ran = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"vgpuctl {__version__}\n"


@pytest.mark.parametrize(
    "line",
    ["--root BAD list-gpus", "--host ssh://a show-vm BAD", "--host ssh://BAD list-gpus",
     "--connect qemu:///BAD list-vms", "--host sim:t4 create-vm BAD --profile T4-1Q", "--root /BAD list-gpus",
     "BAD", "list-gpus --BAD"],
)  # fmt: skip
def test_a_word_that_is_no_text_is_refused(vgpuctl: Run, line: str) -> None:
    words = line.replace("BAD", "\udcff").split()
    ran = vgpuctl(*words, "--json")
    assert (ran.status, ran.document["error"]["code"]) == (2, "invalid-input")
    number = next(number for number, word in enumerate(words, 1) if "\udcff" in word)
    assert ran.document["error"]["message"].startswith(f"word {number} of the command line is not UTF-8 text: ")


@pytest.mark.parametrize("name", ["VGPUCTL_HOST", "SUDO_USER", "XDG_STATE_HOME", "TERM", "HOME", "NO_COLOR"])
def test_a_variable_that_is_no_text_is_no_bug(name: str, tmp_path: Path) -> None:
    environment = {**child_environment(XDG_STATE_HOME=str(tmp_path)), name: f"{tmp_path}/\udcff"}
    ran = child("--host", "sim:t4", "create-vm", "a", "--profile", "T4-1Q", env=environment)
    assert "[bug]" not in ran.stderr
    assert ran.returncode == (2 if name == "VGPUCTL_HOST" else 0)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("--host sim:t4 --host sim:a100-40 list-gpus", "--host: one command is for one of sim:t4, sim:a100-40"),
        ("list-gpus --host sim:t4 --host local", "--host: one command is for one of"),
        ("create-vm a --profile T4-1Q --image /a --image /b", "--image is given twice: /a and /b"),
        ("create-vm a --memory=1GiB --profile T4-1Q --memory 2GiB", "--memory is given twice: 1GiB and 2GiB"),
        ("apply -f one --file two", "--file is given twice: one and two"),
        ("apply -fone -ftwo", "--file is given twice: one and two"),
        ("--wait 5 --wait 6 list-gpus", "--wait is given twice: 5 and 6"),
        ("sim reset --wait 5 --wait 6", "--wait is given twice: 5 and 6"),
    ],
)
def test_repeating_a_single_option_is_refused(vgpuctl: Run, line: str, output: str) -> None:
    ran = vgpuctl(*line.split())
    assert (ran.status, f"vgpuctl: {output}" in ran.err, "[usage]" in ran.err) == (2, True, True)


@pytest.mark.parametrize(
    "line",
    ["--wait 5 list-gpus --wait 6", "list-gpus --wait 6 --wait=6", "fits --profile T4-1Q --profile T4-1B",
     "-v -v list-gpus", "create-vm --dry-run --profile T4-1Q -- --wait"],
)  # fmt: skip
def test_repeatable_options_work(vgpuctl: Run, line: str) -> None:
    assert "twice" not in vgpuctl("--host", "sim:t4", *line.split()).err
