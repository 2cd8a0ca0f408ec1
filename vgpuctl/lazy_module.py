# SPDX-License-Identifier: Apache-2.0
"""A module that is imported when it is first used.

For Python libraries that load slowly or may be missing, and for the many modules of which a command needs one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module at the top of another one; type checkers and import-linter see the module itself.

        if TYPE_CHECKING:
            import libvirt
        else:
            libvirt = LazyModule("libvirt")

    A use of any name in it imports it, and raises ImportError where it is missing.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
