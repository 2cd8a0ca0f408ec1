# SPDX-License-Identifier: Apache-2.0
"""The documents are correct: links resolve, commands for simulated hosts run, transcripts are what the program prints.

A ```console block is a transcript: `$ COMMAND`, then what it printed. `# exit N` after a command says how it ends.
VGPUCTL_REGENERATE=1 writes the transcripts again. Commands in other blocks are run when they name a simulated host;
`--host sim:FILE.yaml` takes the YAML block above it.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import vgpuctl
from vgpuctl import errors

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LDAP_TUTORIAL = ROOT / "docs/tutorials/ldap-desktops.md"
"""It needs slapd and ports: tests/controller/test_ldap_tutorial.py runs it."""
WALKED = [d for d in DOCUMENTS if d.name != "CHANGELOG.md" and d != LDAP_TUTORIAL]
PROMPT = "$ "
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_EXIT = re.compile(r"\s*#\s*exit (\d+)\s*$")
_HOST = re.compile(r"--host[ =]sim:(\S+)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_ID = re.compile(r"-[0-9a-f]{8}(?:(?=-seed)|(?![0-9a-f-]))")
_MAC = re.compile(r"52:54:00(:[0-9a-f]{2}){3}")
_ADDRESS = re.compile(r"192\.168\.122\.\d+")


@dataclass
class Block:
    """One code block: its language ("" when indented), its first line's number from 0, its lines."""

    language: str
    start: int
    lines: list[str] = field(default_factory=list)


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced and the indented code blocks."""
    inside: Block | None = None
    indented: Block | None = None
    for number, line in enumerate(text.splitlines()):
        fence = line.strip().startswith("```")
        if inside is not None:
            if fence:
                yield inside
                inside = None
            else:
                inside.lines.append(line)
        elif fence:
            inside = Block(line.strip().removeprefix("```"), number + 1)
        elif line.startswith("    "):
            indented = indented or Block("", number)
            indented.lines.append(line[4:])
            continue
        if indented is not None:
            yield indented
            indented = None


def headings(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub generates them."""
    result = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in result}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for block in blocks(text):
        text = text.replace("\n".join(block.lines), "") if block.lines else text
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), f"{document.name}: {link}"
        assert not anchor or anchor in headings(target), f"{document.name}: {link} has no such heading"


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/developers/architecture.md"])
def test_every_module_that_is_named_exists(document: str) -> None:
    for name in re.findall(r"`([\w/]+\.py)`", (ROOT / document).read_text(encoding="utf-8")):
        if name.replace("/", "").removesuffix(".py").isupper() or "NAME" in name or "X.py" in name:
            continue
        places = [ROOT / name, ROOT / "vgpuctl" / name]
        places += [] if "/" in name else [*(ROOT / "vgpuctl").rglob(name), *(ROOT / "tests").rglob(name)]
        assert any(place.exists() for place in places), f"{document}: there is no {name}"


def test_every_error_code_is_explained() -> None:
    for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."):
        if not module.name.endswith(".__main__") and ".versions." not in module.name:
            importlib.import_module(module.name)
    kinds: list[type[errors.VgpuctlError]] = [errors.VgpuctlError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    text = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    for kind in kinds:
        row = re.search(rf"^\| `{kind.code}` \| (\S+?),? ", text, re.MULTILINE)
        assert row, f"docs/reference/exit-codes.md does not explain {kind.code}"
        assert row.group(1).rstrip(",") == str(kind.status), kind.code


class Walk:
    """Runs a document's commands in order, on its own simulated hosts. `prefix`: the words before each command."""

    def __init__(self, place: Path, prefix: Sequence[str] = ()) -> None:
        self.place = place
        self._prefix = prefix
        commands = place / "bin"
        commands.mkdir()
        shim = commands / "vgpuctl"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vgpuctl "$@"\n')
        shim.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VGPUCTL_")}
        self.env = {
            **kept,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(place / "state"),
            "COLUMNS": "120",
        }

    def run(self, command: str) -> str:
        """Run one line; it must exit as documented. `export` is remembered for the lines after it."""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value.replace("$PWD", str(self.place))
            return ""
        output = _EXIT.search(command)
        wanted = int(output.group(1)) if output else 0
        argv = [*self._prefix, "bash", "-c", command]
        out, err = subprocess.PIPE, subprocess.STDOUT
        ran = subprocess.run(
            argv, cwd=self.place, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, check=False
        )
        assert ran.returncode == wanted, f"{command}: exit {ran.returncode}\n{ran.stdout}"
        return ran.stdout.replace(str(self.place), "/root")

    def end_what_runs(self) -> None:
        """End the processes that a command left running in the directory."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if (process / "cwd").readlink() == self.place:
                    os.kill(int(process.name), signal.SIGKILL)


def same(text: str) -> str:
    """Return a transcript without the parts that differ each time."""
    return _ADDRESS.sub("IP", _SHORT_ID.sub("-ID", _MAC.sub("MAC", _UUID.sub("UUID", text)))).strip()


@pytest.mark.slow
@pytest.mark.parametrize("document", WALKED, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_command_for_a_simulated_host_runs(document: Path, tmp_path: Path) -> None:
    text = document.read_text(encoding="utf-8")
    walk = Walk(tmp_path)
    yaml = ""
    new = text.splitlines()
    try:
        for block in without_transcripts(list(blocks(text)), new, walk):
            if block.language == "yaml":
                yaml = "\n".join(block.lines)
            for line in block.lines:
                run_if_simulated(walk, line.removeprefix(PROMPT), yaml)
    finally:
        walk.end_what_runs()
    compare_transcripts(document, new)


def compare_transcripts(document: Path, new: list[str]) -> None:
    """Assert that a document has these lines, but for what differs each time; VGPUCTL_REGENERATE=1 writes them."""
    text = document.read_text(encoding="utf-8")
    if os.environ.get("VGPUCTL_REGENERATE") and same("\n".join(new)) != same(text):
        document.write_text("\n".join(new) + "\n", encoding="utf-8")
    else:
        assert same("\n".join(new)) == same(text), "run the tests with VGPUCTL_REGENERATE=1"


def without_transcripts(result: list[Block], new: list[str], walk: Walk) -> Iterator[Block]:
    """Yield the blocks that are no transcript; run each transcript and put what it printed into `new`."""
    moved = 0
    for block in result:
        if block.language != "console":
            yield block
            continue
        printed: list[str] = []
        for command in (line for line in block.lines if line.startswith(PROMPT)):
            out = walk.run(command.removeprefix(PROMPT))
            printed += [command, *out.rstrip().splitlines()]
        begin = block.start + moved
        new[begin : begin + len(block.lines)] = printed
        moved += len(printed) - len(block.lines)


def run_if_simulated(walk: Walk, command: str, yaml: str) -> None:
    """Run a line of an ordinary block when it names a simulated host on its own."""
    named = _HOST.search(command)
    if "vgpuctl" not in command or named is None or re.match(r"NAME|FILE", named.group(1)):
        return
    if named.group(1).endswith(".yaml"):
        (walk.place / named.group(1)).write_text(yaml)
    walk.run(command.replace("vgpuctl ", "vgpuctl --yes ", 1))  # a person would answer the question


def test_no_hint_and_no_help_names_a_page_that_an_installed_program_lacks() -> None:
    """Docstrings of commands are help texts; those of other code, and comments, are for people with a checkout."""
    named = []
    for path in sorted((ROOT / "vgpuctl").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        for_developers = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        if path.parent.name == "commands":
            for_developers -= {id(getattr(n.body[0], "value", None)) for n in nodes if isinstance(n, ast.FunctionDef)}
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in for_developers and re.search(r"\bdocs/", node.value):
                named.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}")
    assert named == []
