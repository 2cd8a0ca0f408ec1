# SPDX-License-Identifier: Apache-2.0
"""What users read is plain English in the field's terms: words and constructions that are gone do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GONE = {
    r"mend(s|ed|ing)?": "fix",
    r"anew|made again|makes? \w+ again": "again, create again, rebuild",
    r"(is|are|was|be|been) told|tells|telling": "shows, reports",
    r"stands? (against|in the way|beside|still)|in the way( of)?(?! in)": "blocks",
    r"(is|are) due": "expected",
    r"see to it": "ensure",
    r"(is|was|not|as) typed": "given on the command line",
    r"whose (it|the rest) is": "its owner",
    r"as (it was )?asked|ask(s|ed) for(?! (its|a pass|the password))": "requests, configures; requested, configured",
    r"foreign(?! key)|ours": "unmanaged, managed",
    r"promise[sd]?|wish(es|ed)?": "record, request",
    r"somebody|anybody": "another program, a user",
    r"at the least|for the time being|thereby|wherein|whereby|by the way|to be there|meant to be so": "say it plainly",
    r"(is|are|was|were) to (be|go|have|come|stay|run)": "must, will, should",
    r"taken back|gone over|gives? (\w+ )?free|give(s|n)? away|lets? go|let (it|them) go": "undone, freed, released",
    r"(says?|said) of": "has, sets",
    r"all the same": "anyway",
    r"beside": "next to, in addition to",
    r"(?<!there )(is|are) no (?!longer|more|room|other)(?=\w)": "is not a",
    r"(?<!out )(is|are|was|were) (not )?there(?! (is|are|a)\b)(?!fore)": "exists, does not exist",
    r"half[- ]way": "unfinished",
    r"goes? with": "requires, can be combined with",
    r"exclude each other": "cannot be combined",
    r"out of reach": "not accessible",
    r"(?:^|[;,:] |or )say (?!why)": "use, specify",
    r"(without|by|through) which": "two sentences",
    r"takes? (\w+ )?away|taken away": "removes",
    r"leaves? (\S+ )?out|left out": "omit, ignore, exclude",
    r"so many|as many as have|those there are": "N",
    r"(makes?|made|making) (a |an |its |all |new |missing |one |several |more |those )*"
    r"(vGPU|VM|GPU instance|disk|VF|mdev|pool|desktop|clone|volume|environment)s?": "creates",
    r"put (that )?right|worth nothing|rid of|of no use|come back|comes back|it is done": "say it plainly",
    r"in (the|its) place of": "instead of, replaces",
    r"stumbled|says why|hung up": "failed, shows why",
    r"cannot (go on|be had)|goes on|go on": "continues",
    r"built in(?!to)(?=$|[;,. ])": "default",
    r"looks? (at it|there)": "check, inspect",
    r"\w+\(e?s(?=\))": "the noun that the number needs: count_text",
}
"""Regular expression, at word boundaries and in any case -> what says it better."""
ALLOWED = {
    ("vgpuctl/host/logs.py", "left out"): "bytes of a value that is too long for the journal",
}
"""(file, text of the match) -> why the words are right there."""
_GONE = re.compile("|".join(rf"(?P<w{n}>\b(?:{words})\b)" for n, words in enumerate(GONE)), re.IGNORECASE)


def _text(node: ast.AST) -> str | None:
    """Return a literal's text, `{}` for each value in it, or None for another node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def _literals(node: ast.AST, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string literal; a string that is a statement is a docstring."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and not docstrings:
            continue
        text = _text(child)
        if text is not None and isinstance(child, ast.expr):
            yield child.lineno, text
            parts = [part for part in ast.walk(child) if isinstance(part, ast.FormattedValue)]
            for part in parts:
                yield from _literals(part, docstrings=False)
        else:
            yield from _literals(child, docstrings=docstrings)


def _user_texts() -> Iterator[tuple[str, int, str]]:
    """Yield file, line and text of what a user can see."""
    for path in sorted((ROOT / "vgpuctl").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        shown = name.startswith(("vgpuctl/cli/commands/", "vgpuctl/model/results/", "vgpuctl/library/"))
        for line, text in _literals(ast.parse(path.read_text(encoding="utf-8")), docstrings=shown):
            yield name, line, text
    written = [path for path in (ROOT / "ansible").rglob("*") if path.suffix in (".py", ".md", ".yml", ".yaml", ".j2")]
    written += [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/json/*.json")]
    for path in sorted(written):
        name = str(path.relative_to(ROOT))
        if name == "CHANGELOG.md" or name.startswith("docs/reports/"):
            continue
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.lstrip().startswith("#"):  # a comment in YAML or Python, or a heading
                yield name, line, text


def _gone_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield each match in a text, and what says it better."""
    better = list(GONE.values())
    for match in _GONE.finditer(text):
        yield match[0], better[int((match.lastgroup or "w0")[1:])]


def test_no_text_for_users_has_words_that_are_gone():
    hits = [
        f"{name}:{line}: '{word}' ({better}): {text.strip()[:160]}"
        for name, line, text in _user_texts()
        for word, better in _gone_words(text)
        if (name, word.lower()) not in ALLOWED
    ]
    assert not hits, "\n".join(hits)


def test_what_is_allowed_is_still_there():
    seen = {(name, word.lower()) for name, _, text in _user_texts() for word, _ in _gone_words(text)}
    assert set(ALLOWED) <= seen
