# SPDX-License-Identifier: Apache-2.0
"""The page of the API: it lists every call with an example, and curl gets from each what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import ROOT, RunningAgent, running
from tests.agent.examples import EXAMPLES, FENCE, HOSTS, SOCKET, command
from tests.agent.test_commands import prepare
from vgpuctl.agent import openapi
from vgpuctl.agent.operations import WAITING_CALLS
from vgpuctl.agent.protocol import API_CALLS
from vgpuctl.cli import entry

PAGE = ROOT / "docs" / "reference" / "api.md"
DESCRIPTION = ROOT / "docs" / "json" / "openapi.json"
BEGIN, END = "<!-- calls: begin -->\n", "<!-- calls: end -->\n"
FAILS = {
    "advise-sizes": ("host-cannot",),
    "allow-logon": ("host-cannot",),
    "find-causes": (),
    "migrate-out": ("invalid-input",),
    "prepare-incoming": ("libvirt-failed", "invalid-input"),
    "import-host": ("invalid-input",),
    "make-account": ("host-cannot",),
    "mark-desktop": ("refused",),
    "message-vm": ("host-cannot",),
    "move-vms": (),
    "set-password": ("host-cannot",),
    "shutdown-in": ("host-cannot",),
    "usage-report": ("host-cannot",),
}
"""Examples whose call may answer no: with which codes."""


def table() -> str:
    """Return the part of the page that lists the calls."""
    parts = []
    for changes in (False, True):
        parts.append(f"### {'Changes' if changes else 'Reads'}\n")
        for name, call in sorted(API_CALLS.items()):
            if call.changes is changes:
                parts.append(f"**`{name}`** {call.summary}\n\n```sh\n{command(name, changes=changes)}\n```\n")
    return "\n".join(parts)


def test_the_page_lists_every_call() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    if os.environ.get("VGPUCTL_REGENERATE"):
        PAGE.write_text(wanted, encoding="utf-8")
        DESCRIPTION.write_text(openapi.text(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == wanted, "run the tests with VGPUCTL_REGENERATE=1"
    assert DESCRIPTION.read_text(encoding="utf-8") == openapi.text(), "run the tests with VGPUCTL_REGENERATE=1"
    assert EXAMPLES.keys() == API_CALLS.keys()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The state directories of prepared hosts, by name; a test copies the one that it needs."""
    return {}


@pytest.fixture
def example_agent(
    request: pytest.FixtureRequest,
    prepared: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[RunningAgent]:
    """An agent of the prepared host of an example."""
    name = HOSTS.get(request.getfixturevalue("name"), "mixed")

    def run(text: str) -> Any:
        capsys.readouterr()
        entry.main(["--host", f"sim:{name}", "--json", "--yes", *shlex.split(text)])
        return json.loads(capsys.readouterr().out)

    if name not in prepared:
        prepared[name] = tmp_path_factory.mktemp(name)
        monkeypatch.setenv("XDG_STATE_HOME", str(prepared[name]))
        prepare(run, name)
    shutil.copytree(prepared[name], tmp_path / "copy")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "copy"))
    with running(f"sim:{name}", tmp_path) as agent:
        yield agent


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_works(name: str, example_agent: RunningAgent) -> None:
    changes = API_CALLS[name].changes
    example_agent.ask("POST", "/v1/fleet", {"fence": FENCE})
    words = [word.replace(SOCKET, example_agent.path) for word in shlex.split(command(name, changes=changes))]
    answer = json.loads(subprocess.run([*words, "-sS"], capture_output=True, text=True, check=True, timeout=60).stdout)
    if changes or name in WAITING_CALLS:
        answer = example_agent.ended(answer["id"])
    assert answer["kind"] == name
    if name in FAILS and not answer["ok"]:
        assert answer["error"]["code"] in FAILS[name]
    else:
        assert answer["ok"], answer


def test_the_other_examples_of_the_page_work(agent: RunningAgent) -> None:
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    ran = 0
    for line in "\n".join(blocks).splitlines():
        if line.startswith("curl ") and "/events" not in line:
            operations = agent.ask("GET", "/v1/operations").document["operations"]
            shown = line.replace(SOCKET, agent.path).replace("ID", operations[0]["id"] if operations else "ID")
            done = subprocess.run([*shlex.split(shown), "-sSf"], capture_output=True, timeout=60, check=False)
            assert done.returncode == 0, (line, done.stderr)
            ran += 1
    assert ran >= 4
