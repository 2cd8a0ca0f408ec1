# SPDX-License-Identifier: Apache-2.0
"""A request to the agent: a call of the library with its arguments, for whom, and how."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.agent.protocol import RequestOptions, confirmation_key
from vgpuctl.errors import NeedsConfirmation
from vgpuctl.library.call_table import LibraryCall
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.outcome import CallSettings, Progress, confirm_everything
from vgpuctl.value import replace

MAX_NAME_CHARACTERS = 255
"""More than libvirt takes as the name of a domain on any file system."""


class CallRequest:
    """A checked request: the call, its arguments, who asks. `key`: the caller's own name for it, None without one.

    `renew`: checks it again, with the rights that the caller has then; for one that waited. `vm_name`: the VM's name,
    where the arguments have its uuid.
    """

    def __init__(
        self,
        call: LibraryCall,
        arguments: Mapping[str, Any],
        options: RequestOptions,
        caller: Caller,
        key: str | None = None,
        renew: Callable[[], CallRequest] | None = None,
        vm_name: str | None = None,
    ) -> None:
        self.call = call
        self.arguments = arguments
        self.options = options
        self.caller = caller
        self.key = key
        self.renew = renew
        self._vm_name = vm_name

    @property
    def vm(self) -> str | None:
        """The one VM that the call names, by name or uuid; None if it names several, none, or no possible name."""
        name = (self._vm_name or self.arguments.get("name")) if self.call.about == "vm" else None
        is_possible = isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME_CHARACTERS
        return name if is_possible else None

    def digest(self, secret: bytes) -> str:
        """Return what tells this request from others. It is keyed, since the request may have passwords in it.

        Which holder of the host's lease sends it makes no difference: another one asks how it ended.
        """
        fleet = self.options.fleet
        options = replace(self.options, fleet=None)
        mark = None if fleet is None else fleet.mark
        text = json.dumps([self.call.name, *map(to_json_value, (self.arguments, options, mark))], sort_keys=True)
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()

    def settings(self, progress: Progress, cancelled: Callable[[], bool]) -> CallSettings:
        """Return how the library's call works for this request."""
        command_line = self.options.command_line if self.caller.rights is Rights.ROOT else ()
        command_line = command_line or self._words()
        return replace(
            CallSettings(progress=progress, cancelled=cancelled, command_line=command_line),
            files=self.options.files,
            caller=self.caller,
            if_generation=self.options.if_generation,
            fleet=self.options.fleet,
            override_controller=self.options.override_controller,
            confirm=self._confirm if self.options.ask else confirm_everything,
            **({} if self.options.wait_seconds is None else {"wait_seconds": self.options.wait_seconds}),
        )

    def _words(self) -> tuple[str, ...]:
        """Return what was asked, for the audit journal; a client that is not root could claim any command line."""
        words = [f"{name}={_word_of(name, value)}" for name, value in self.arguments.items()]
        if self.options.fleet is not None and self.options.fleet.mark is not None:
            words.append(f"mark={json.dumps(to_json_value(self.options.fleet.mark), ensure_ascii=False)}")
        return ("agent", self.call.name, *words)

    def _confirm(self, question: str, details: tuple[str, ...]) -> None:
        if confirmation_key(question, details) not in self.options.confirmed:
            raise NeedsConfirmation(question, question=question, lines=list(details))


def _word_of(name: str, value: object) -> str:
    """Return an argument as text, unless it is a secret; of a configuration for cloud-init only a file's name."""
    is_content = name in ("cloud_init", "network_config") and not str(value).startswith("/")
    if is_content or name == "password":
        return "***"
    return value if isinstance(value, str) else json.dumps(to_json_value(value))
