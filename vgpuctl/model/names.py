# SPDX-License-Identifier: Apache-2.0
"""The spelling of names: PCI addresses, the parts of an NVIDIA profile's name, and which characters are visible.

A PCI address is `0000:3b:00.0`, lower case, a domain of at least four digits. nvidia-smi and NVML print an eight-digit
domain in upper case (`00000000:3B:00.0`), sysfs four digits in lower case, and people omit the domain. Two spellings of
one address would not match, and a command would silently do nothing. So every address is normalized here once, when it
enters the program. Intel's VMD and virtual bridges have domains above ffff: the kernel prints them with as many digits
as they need, `10000:01:00.0`. So nothing but this module may count digits.

A profile's name is `A100-4C`, `A100-1-5CME`, or `4C`, which omits the board. vgpu-device-manager writes the GPU
instance's attribute after it: ME, NOME, MEALL or GFX (pkg/types/vgpu_type.go).

A character that is not visible could control a terminal or make two names look alike.
"""

from __future__ import annotations

import re
import unicodedata

from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])\.([0-7])", re.ASCII)
PCI_IN_TEXT = r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b"
"""An address within a text, as in the kernel's log: with or without domain and function, in lower case."""

GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
"""A GPU's UUID as NVIDIA's library has it."""
_KERNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

_NVIDIA = re.compile(
    r"(?:(?P<board>[A-Za-z].*?|\d+[A-Za-z].*?)-)?(?P<rest>(?:(?P<slices>[1-7])-)?\d+(?P<series>[ABCQ])(?P<suffix>4|ME|NOME|MEALL|GFX)?)",
    re.IGNORECASE,
)
_SHORT_NAME = re.compile(r"\w.*-\d\w*")

_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
"""Letters that display nothing but that Python calls printable: Default_Ignorable_Code_Point of Unicode's
DerivedCoreProperties.txt, without the variation selectors that emoji use."""
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls (C0 and C1); format characters, such as direction marks, zero-width marks and tags;
surrogates; line and paragraph separators."""
_NONCHARACTER = 0xFFFE


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


class ProfileName(Value):
    """The parts of a name. `board`: "" when omitted; `without_board`: the rest; `mig_slices`: 0 without MIG.

    Exclusive types (A and B series, ...ME) cannot be combined with another vGPU in a VM: NVIDIA AI Enterprise
    documentation, multiple vGPUs; NVML capability NVML_VGPU_CAP_MULTI_VGPU_EXCLUSIVE.
    """

    board: str
    without_board: str
    mig_slices: int
    series: str
    exclusive: bool


def parse_profile_name(profile: str) -> ProfileName | None:
    """Return the parts of an NVIDIA profile's name, or None for another vendor's."""
    match = _NVIDIA.fullmatch(profile)
    if match is None:
        return None
    series, suffix = match["series"].upper(), (match["suffix"] or "").upper()
    exclusive = series in "AB" or suffix in ("ME", "MEALL")
    return ProfileName(match["board"] or "", match["rest"], int(match["slices"] or 0), series, exclusive)


def profile_of_type(type_name: str) -> str:
    """Return the profile of an NVIDIA type from the driver's name of the type: the last word, if it names a board.

    Otherwise the whole name: "NVIDIA GeForce RTX 3050", a type of RTX PRO 6000 (ids 1604, 1605, 2266 and 2267 of
    NVIDIA's driver 595), ends in a word that names neither board nor size.
    """
    last_word = type_name.rpartition(" ")[2]
    return last_word if _SHORT_NAME.fullmatch(last_word) else type_name


def strip_board(profile: str) -> str:
    """Return an NVIDIA profile's name without the board: `2B`, `1-10C`; another vendor's name stays whole."""
    parsed = parse_profile_name(profile)
    return parsed.without_board if parsed is not None else profile


def is_visible(character: str) -> bool:
    """Return whether the character is visible; a space counts as visible."""
    if character.isprintable():
        return character not in _INVISIBLE_LETTERS
    return (
        unicodedata.category(character) not in _INVISIBLE_CATEGORIES and ord(character) & _NONCHARACTER != _NONCHARACTER
    )
