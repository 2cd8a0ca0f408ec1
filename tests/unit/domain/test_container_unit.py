# SPDX-License-Identifier: Apache-2.0
"""Units that start a container: what systemd itself reads in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from vgpuctl.domain.container_unit import (
    container_unit,
    expand,
    full_image_name,
    quote_word,
    unit_name,
    variables_text,
)

GPUS = ("nvidia.com/gpu=all",)
NASTY = [
    "a b",
    "$HOME",
    "${X}",
    "%n",
    "100%",
    '"',
    "'",
    "\\",
    "\\n",
    "a;b",
    "&",
    "|",
    "`id`",
    "$(id)",
    "line\nline",
    "tab\t",
    "ü",
    "",
    "-x",
    "#",
    "@",
]


def test_systemd_finds_nothing_wrong_in_a_unit(tmp_path: Path) -> None:
    text = container_unit(
        "job-a.service", "example.org/i:1", ["/bin/sh", "-c"], NASTY, restart="no", has_variables=True, devices=GPUS
    )
    path = tmp_path / "job-a.service"
    path.write_text(text.replace("/usr/bin/podman", "/bin/true"))
    done = subprocess.run(
        [str(shutil.which("systemd-analyze")), "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_variables_are_in_a_file_of_their_own() -> None:
    text = container_unit("job-a.service", "i", [], [], restart="no", has_variables=True, devices=GPUS)
    assert " --env-file=/etc/vgpuctl/jobs/job-a.env i\nRestart=no\n" in text
    assert "--env" not in container_unit(
        "job-a.service", "i", [], [], restart="always", has_variables=False, devices=GPUS
    )
    assert variables_text({"TOKEN": "hunter2 100% $x", "B": ""}) == "TOKEN=hunter2 100% $x\nB=\n"


@pytest.mark.parametrize("env", [{"A=B": "c"}, {"": "c"}, {"A": "\x1b"}, {"A": "one\nB=two"}])
def test_what_no_line_can_have_is_no_variable(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="the variable"):
        variables_text(env)


@pytest.mark.parametrize("word", NASTY)
def test_a_word_stays_one_word(word: str) -> None:
    quoted = quote_word(word)
    assert "\n" not in quoted
    if quoted != word:
        assert json.loads(quoted.replace("$$", "$").replace("%%", "%")) == word, "C's escapes are JSON's, too"


@pytest.mark.parametrize("word", ["a\0b", "\u202eevil", "\x1b[31m"])
def test_what_no_unit_can_have_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        container_unit("job-a.service", "i", [], [word], restart="always", has_variables=False, devices=GPUS)


@pytest.mark.parametrize(
    ("pod", "container", "name"),
    [
        ("a", "a", "job-a.service"),
        ("a", "b", "job-a-b.service"),
        ("../x", "y\n", "job-x-y.service"),
        ("!", "!", "job-container.service"),
    ],
)
def test_the_name_of_a_unit(pod: str, container: str, name: str) -> None:
    assert unit_name(pod, container) == name


@pytest.mark.parametrize(
    ("word", "expanded"),
    [("--r=$(RANK)", "--r=3"), ("$$(RANK)", "$(RANK)"), ("$(NOT)", "$(NOT)"), ("$HOME", "$HOME"), ("$$$(RANK)", "$3")],
)
def test_references_to_variables_are_replaced_as_kubernetes_does(word: str, expanded: str) -> None:
    assert expand(word, {"RANK": "3"}) == expanded


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu"),
        ("nvidia/cuda:9.0", "docker.io/nvidia/cuda:9.0"),
        ("registry.example.org/a/b@sha256:0", "registry.example.org/a/b@sha256:0"),
        ("localhost/a", "localhost/a"),
        ("host:5000/a", "host:5000/a"),
    ],
)
def test_an_image_has_the_registry_that_kubernetes_takes(image: str, full: str) -> None:
    assert full_image_name(image) == full


@pytest.mark.parametrize("image", ["", "-x", "${IMAGE}", "a b", "a\nb", "a" * 600])
def test_what_is_no_image(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        full_image_name(image)
