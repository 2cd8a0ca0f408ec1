# SPDX-License-Identifier: Apache-2.0
"""Runs the program: in this process for its results, in a child for signals, pipes and imports."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from vgpuctl.cli import entry, schemas
from vgpuctl.cli.schemas import result_type
from vgpuctl.model import documents
from vgpuctl.model.result_reader import read_result

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., "Ran"]
ANSWERS = ("diff", "doctor", "fits")
"""Commands whose exit status is their answer: a result with another status than 0 is no error."""


@dataclass
class Ran:
    """The result of one command line."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        result: dict[str, Any] = json.loads(self.out)
        return result


@cache
def validator_of(kind: str) -> Draft202012Validator:
    """Return what checks the documents of a kind; test_schemas.py checks that the schemas themselves are valid."""
    return Draft202012Validator(schemas.document_schema(kind))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("VGPUCTL_HOST", "_VGPUCTL_COMPLETE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def vgpuctl(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*words: str) -> Ran:
        capsys.readouterr()
        status = entry.main(words)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def sim(vgpuctl: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a line on a simulated host (default: one A100), and check the document if there is one.

    `text` is what the command reads from standard input.
    """

    def run(line: str, host: str = "a100-40", text: str | bytes | None = None) -> Ran:
        words = shlex.split(line)
        if text is not None:
            given = text.encode() if isinstance(text, str) else text
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        ran = vgpuctl("--host", f"sim:{host}", *words)
        if "--json" in words:
            validator_of(ran.document["kind"]).validate(ran.document)
            if ran.document["ok"]:
                result = read_result(result_type(ran.document["kind"]), ran.document)
                assert documents.to_json_value(documents.result_data(result)) == ran.document["data"]
            assert "-v" in words or ran.err == ""
            assert ran.document["ok"] is (ran.status == 0 or (ran.document["ok"] and ran.document["kind"] in ANSWERS))
        return ran

    return run


@pytest.fixture
def scenario(sim: Run, tmp_path: Path) -> Callable[[str], Run]:
    """Return a function that writes a scenario and returns what runs a line on its host."""

    def make(text: str) -> Run:
        (tmp_path / "host.yaml").write_text(text)
        return partial(sim, host=str(tmp_path / "host.yaml"))

    return make


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child that imports this checkout, and what this process is tried with."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **more}


def child(*words: str, code: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program, or other Python code, in a child process."""
    command = [sys.executable, *(["-c", code] if code is not None else ["-m", "vgpuctl"]), *words]
    options.setdefault("env", child_environment())
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
