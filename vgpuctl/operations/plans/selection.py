# SPDX-License-Identifier: Apache-2.0
"""Which VMs, vGPUs or GPUs a user means: names, ranges, globs, all of them, or those with certain labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.config.name_patterns import expand_braces, is_glob, is_pattern, matches_glob, natural_key
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.value import EMPTY_MAPPING, Value

MAX_SHOWN = 8


class Candidate(Value):
    """Something that can be selected. `aliases`: other exact names, as a uuid. `models`: a glob may match them too.

    `managed` False: a glob, a label or "all" does not select it for a change.
    """

    name: str
    aliases: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    labels: Mapping[str, str] = EMPTY_MAPPING
    owner: str | None = None
    managed: bool = True


class Request(Value):
    """What the user typed. `what`: "VM", "vGPU" or "GPU". `labels`, `owner`: only those that have all of these.

    `everything`: all of them, if there are no `texts`. `list_command`: shows them.
    """

    what: str
    texts: tuple[str, ...] = ()
    everything: bool = False
    labels: Mapping[str, str] = EMPTY_MAPPING
    owner: str | None = None
    list_command: str = "vgpuctl list-vms"


class Selection(Value):
    """The selected names, each once, in the order in which they were typed. `left_out`: unmanaged ones that match."""

    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def select(request: Request, candidates: Sequence[Candidate], *, managed_only: bool) -> Selection:
    """Return what a request selects. A name that exists is that one, even if it looks like a pattern.

    Raises:
        InvalidInput: nothing is requested, or a pattern is invalid.
        NotFound: names do not exist, or a pattern, the labels or "all" select nothing.
    """
    if not request.texts and not request.everything and not request.labels and request.owner is None:
        raise InvalidInput(
            f"no {request.what} is named",
            hint=f"name one, or several: a range, a glob or --all; {request.list_command}",
        )
    index = {alias: c for c in candidates for alias in c.aliases} | {c.name: c for c in candidates}
    chosen: dict[str, Candidate] = {}
    left_out: dict[str, Candidate] = {}
    missing: list[str] = []
    for text in request.texts or ("*",):
        exact = index.get(text)
        words = (text,) if exact is not None or not is_pattern(text) else expand_braces(text)
        for word in words:
            named = index.get(word)
            if named is not None and request.texts:
                _add_if_labelled(chosen, request, [named])
            elif is_glob(word):
                matches = [c for c in candidates if _matches(c, word)]
                wanted = [c for c in matches if c.managed or not managed_only]
                _add_if_labelled(chosen, request, wanted)
                _add_if_labelled(left_out, request, [c for c in matches if c not in wanted])
                if not matches and request.texts:
                    missing.append(word)
            else:
                missing.append(word)
    if missing:
        raise _missing_error(request, missing)
    remaining = tuple(name for name in left_out if name not in chosen)
    if not chosen:
        raise _nothing_error(request, remaining)
    return Selection(tuple(chosen), remaining)


def left_out_note(selection: Selection, what: str) -> tuple[str, ...]:
    """Return the note about unmanaged ones that a pattern matches and that stay as they are."""
    count = len(selection.left_out)
    if not count:
        return ()
    return (f"{count} unmanaged {what}{'s' if count > 1 else ''} skipped: {shorten(selection.left_out)}",)


def shorten(names: Sequence[str]) -> str:
    """Return names as text; of many, the first ones."""
    more = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _matches(candidate: Candidate, glob: str) -> bool:
    models = (model.lower() for model in candidate.models)
    return matches_glob(candidate.name, glob) or any(matches_glob(model, glob.lower()) for model in models)


def _add_if_labelled(chosen: dict[str, Candidate], request: Request, candidates: Sequence[Candidate]) -> None:
    for candidate in sorted(candidates, key=lambda c: natural_key(c.name)):
        if request.owner in (None, candidate.owner) and request.labels.items() <= candidate.labels.items():
            chosen.setdefault(candidate.name, candidate)


def _missing_error(request: Request, missing: Sequence[str]) -> NotFound:
    names = list(dict.fromkeys(missing))
    globs = [name for name in names if is_glob(name)]
    if globs:
        message = f"no {request.what} matches {shorten(globs)}"
        message += f", and there is no {request.what} {shorten([n for n in names if n not in globs])}" * (
            globs != names
        )
    else:
        message = f"there is no {request.what} {shorten(names)}"
    return NotFound(message, hint=f"{request.list_command} shows what exists; nothing was changed", missing=names)


def _nothing_error(request: Request, left_out: Sequence[str]) -> NotFound:
    labels = ", ".join(f"{key}={value}" for key, value in request.labels.items())
    if left_out:
        message = f"vgpuctl manages no {request.what} that matches; unmanaged: {shorten(left_out)}"
        hint = "name an unmanaged one exactly if this command can change it"
    elif request.owner is not None:
        of_names = f" of {shorten(request.texts)}" if request.texts else ""
        message = f"no {request.what}{of_names} has the owner {request.owner}{f' and {labels}' if labels else ''}"
        hint = f"{request.list_command} shows the owners"
    elif labels:
        of_names = f" of {shorten(request.texts)}" if request.texts else ""
        message = f"no {request.what}{of_names} has the label{'s' if len(request.labels) > 1 else ''} {labels}"
        hint = f"{request.list_command} --json shows the labels"
    elif request.texts:
        message, hint = f"no {request.what} matches {shorten(request.texts)}", f"{request.list_command} shows them"
    else:
        message, hint = f"there is no {request.what} here", f"{request.list_command} shows them"
    return NotFound(message, hint=hint, labels=dict(request.labels) or None, left_out=list(left_out) or None)
