# SPDX-License-Identifier: Apache-2.0
"""NVML's error numbers (nvml.h, nvmlReturn_t)."""

from __future__ import annotations

from typing import NoReturn

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 2, 3, 6, 19, 23


class NvmlError(Exception):
    """NVML returned an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


def raise_nvml_error(code: int) -> NoReturn:
    """Raise NVML's error of this number."""
    raise NvmlError(code)
