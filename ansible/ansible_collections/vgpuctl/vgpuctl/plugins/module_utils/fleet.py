# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ask a controller of pools: `vgpuctl controller CALL`, with its address and the file of a token.

A secret is never a word of a command line, nor an option: vgpuctl reads it from the file.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import PROGRAM, ask, flags

CONTROLLER: dict[str, Any] = {
    "controller": {"type": "str"},
    "token_file": {"type": "path", "no_log": False},  # the path is no secret
    **PROGRAM,
}


class Fleet:
    """The controller of a task. `steps`: the calls that changed something, or would in check mode."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._where = flags(module.params, "controller", "token_file")
        self.steps: list[str] = []

    def read(self, *words: str, absent: Any = None) -> Any:
        """Return the data of a call; `absent` if there is no such thing, None: that is an error."""
        return ask(self._module, ["controller", words[0], *self._where, *words[1:]], absent=absent)["data"]

    def change(self, *words: str, data: str | None = None, absent: Any = None) -> Any:
        """Make a call, in check mode only check it, and return its data. `data`: its standard input."""
        dry = ["--dry-run"] if self._module.check_mode else []
        line = ["controller", words[0], *self._where, *dry, *words[1:]]
        document = ask(self._module, line, data, absent)
        if document["changed"] and document.get("error") is None:
            self.note(words[0])
        return document["data"]

    def note(self, call: str) -> None:
        """Note a call that changed something."""
        self.steps.append(f"{call} {self._module.params.get('name') or self._module.params['who']}")

    def end(self, kind: str, before: dict[str, Any], after: dict[str, Any], keys: tuple[str, ...]) -> None:
        """End the module with what the controller says of a thing; --diff shows these keys of it."""
        result = {"changed": bool(self.steps), "steps": self.steps, kind: after}
        if self._module._diff:
            sides = ({key: side[key] for key in keys if side} for side in (before, after))
            result["diff"] = dict(zip(("before", "after"), sides))
        self._module.exit_json(**result)
