# SPDX-License-Identifier: Apache-2.0
"""Shell completion: click's, with a bash script that keeps GPU addresses and `sim:NAME` in one piece.

bash splits words at colons, so click's own script can neither read nor complete `0000:3b:00.0`. This script
passes on the line as typed, and removes from the answers the prefix that readline already has.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from vgpuctl.cli import streams

_BASH = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" current="${COMP_WORDS[COMP_CWORD]}" word kind value prefix
    COMPREPLY=()
    word="${line##*[[:space:]]}"
    [[ "$word" == --*=* ]] && word="${word#*=}"
    prefix=""
    [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]] && prefix="${word%%"${word##*:}"}"
    while IFS=, read -r kind value; do
        case "$kind" in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) [[ "$value" == *= ]] && compopt -o nospace; COMPREPLY+=("${value#"$prefix"}") ;;
        esac
    done < <(COMP_WORDS="$line" COMP_CWORD=0 %(complete_var)s=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(ShellComplete):
    """Completion for bash, from the line up to the cursor."""

    name = "bash"
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Split the line; a last word without a space after it is the incomplete one."""
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)[1:]
        if words and not line[-1:].isspace():
            return words[:-1], words[-1]
        return words, ""

    def format_completion(self, item: CompletionItem) -> str:
        """Return kind and value."""
        return f"{item.type},{item.value}"


_CLASSES: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


def complete(cli: click.Command, settings: object, program: str, variable: str, instruction: str) -> int:
    """Answer the shell's completion request; a failure prints nothing, because the user only pressed Tab."""
    shell, _, action = instruction.partition("_")
    if shell not in _CLASSES or action != "complete":
        return 1
    try:
        answer = _CLASSES[shell](cli, {"obj": settings}, program, variable).complete()
    except Exception:  # noqa: BLE001
        return 0
    click.echo(streams.sanitize(answer).encode(errors="replace"))
    return 0


def script(cli: click.Command, shell: str, program: str, variable: str) -> str:
    """Return the script that enables completion in a shell."""
    return ShellComplete.source(_CLASSES[shell](cli, {}, program, variable))
