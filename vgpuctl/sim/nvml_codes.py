# SPDX-License-Identifier: Apache-2.0
"""NVML's numbers for refusing something (nvml.h, nvmlReturn_t)."""

from __future__ import annotations

from typing import NoReturn

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23


class RefusedByNvml(Exception):
    """NVML answers with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


def refuse(code: int) -> NoReturn:
    """Raise NVML's refusal."""
    raise RefusedByNvml(code)
