# SPDX-License-Identifier: Apache-2.0
"""The documents as a site: it builds without a warning, and its user pages are short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_documents import PROMPT, blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
USER_PAGES = [
    ROOT / "README.md",
    *DOCS.glob("*.md"),
    *(page for part in ("tutorials", "howto", "reference", "explanation") for page in (DOCS / part).rglob("*.md")),
]
MOST_WORDS, MOST_WORDS_OF_README, FEWEST_SYMPTOMS = 51_500, 900, 25


_GENERATED = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)
"""Lists that are made from the program, such as the API's calls: nobody reads them from end to end."""


def count_words(page: Path) -> int:
    """Count what a reader reads: words with a letter or digit, and commands; not what commands printed, nor lists."""
    text = _GENERATED.sub("", page.read_text(encoding="utf-8"))
    lines = text.splitlines()
    for block in blocks(text):
        if block.language == "console":
            for number, line in enumerate(block.lines, block.start):
                lines[number] = line if line.startswith(PROMPT) else ""
        elif block.language.startswith("{graphviz}"):
            lines[block.start : block.start + len(block.lines)] = [""] * len(block.lines)
    return sum(bool(re.search(r"\w", word)) for line in lines for word in line.split())


def test_user_pages_are_short() -> None:
    counts = {str(page.relative_to(ROOT)): count_words(page) for page in USER_PAGES}
    assert sum(counts.values()) <= MOST_WORDS, sorted(counts.items(), key=lambda entry: -entry[1])
    assert counts["README.md"] <= MOST_WORDS_OF_README


def test_the_symptom_index_has_a_command_for_most_symptoms() -> None:
    rows = re.findall(r"^\| (?!you see|---).*\|$", (DOCS / "symptoms.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) >= FEWEST_SYMPTOMS
    assert sum("vgpuctl " in row for row in rows) > len(rows) / 2


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", str(DOCS), str(tmp_path / "html")]
    built = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    commands = (tmp_path / "html/reference/cli.html").read_text(encoding="utf-8")
    assert "--cloud-init" in commands
    assert commands.count('id="cmdoption-vgpuctl-hosts-at-a-time"') == 1, "options of every command are shown once"
    pages = {p: p.read_text(encoding="utf-8") for p in (tmp_path / "html").rglob("*.html")}
    loaded = [
        u for text in pages.values() for u in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(http[^"]+)"', text)
    ]
    assert not loaded, "the site works offline"
    assert (tmp_path / "html/searchindex.js").stat().st_size > 0
