# SPDX-License-Identifier: Apache-2.0
"""PCI addresses in the one spelling that vgpuctl uses: `0000:3b:00.0`, lower case, a domain of at least four digits.

nvidia-smi and NVML print an eight-digit domain in upper case (`00000000:3B:00.0`), sysfs four digits in lower case, and
people omit the domain. Two spellings of one address would not match, and a command would silently do nothing. So every
address is normalized here once, when it enters the program. Intel's VMD and virtual bridges have domains above ffff:
the kernel prints them with as many digits as they need, `10000:01:00.0`. So nothing but this module may count digits.
"""

from __future__ import annotations

import re

from vgpuctl.errors import InvalidInput

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])\.([0-7])", re.ASCII)
PCI_IN_TEXT = r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b"
"""An address within a text, as in the kernel's log: with or without domain and function, in lower case."""

_KERNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


def normalize_pci(text: str) -> str | None:
    """Return the sysfs spelling of a PCI address, or None when `text` is not one."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return None
    return format_pci(*(int(number or "0", 16) for number in match.groups()))


def normalize_device(text: str) -> str | None:
    """Return the sysfs spelling of an address that may omit its function, which is then 0, as drivers print them."""
    return normalize_pci(text if "." in text else f"{text}.0")


def format_pci(domain: int, bus: int, slot: int, function: int) -> str:
    """Return the sysfs spelling of an address that is given in numbers."""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def parse_gpu_address(text: str) -> str:
    """Return a GPU's name: a normalized PCI address, or an mdev parent's kernel name.

    Raises:
        InvalidInput: `text` is neither; a YAML 1.1 parser turns an unquoted address into a number.
    """
    address = normalize_pci(text)
    if address is not None:
        return address
    if _KERNEL_NAME.fullmatch(text) and not text.replace(".", "").isdigit():
        return text
    raise InvalidInput(
        f"'{text}' is not a GPU address",
        hint="write it like 0000:3b:00.0; vgpuctl list-gpus --all shows them",
        value=text,
    )


def split_pci(address: str) -> tuple[int, int, int, int]:
    """Return domain, bus, slot and function of a normalized PCI address as numbers."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(slot, 16), int(function, 16)


def is_pci_address(address: str) -> bool:
    """Return whether the name of a GPU or carrier is a normalized PCI address."""
    return normalize_pci(address) == address


def address_sort_key(address: str) -> tuple[int, tuple[int, int, int, int], str]:
    """Return a sort key: PCI addresses by number, then kernel names."""
    return (0, split_pci(address), "") if is_pci_address(address) else (1, (0, 0, 0, 0), address)
