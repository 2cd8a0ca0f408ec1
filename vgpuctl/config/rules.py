# SPDX-License-Identifier: Apache-2.0
"""The rules of a VM spec, once, for files and for options alike.

Each rule takes one raw value and returns it in its canonical spelling, or raises ValueError with a sentence that says
what to write. `find_contradictions` and `find_missing_fields` check fields together. Nothing here knows the source of a
value: the caller adds `file:line:column` or the option's name.

Size: the rule of each field is next to the others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from vgpuctl.config import name_patterns
from vgpuctl.config.arguments import (
    CPU_PIN_AUTO,
    GPU_MODES,
    MAX_VGPUS_PER_VM,
    NAME_PATTERN,
    OS_KINDS,
    PCI_WINDOW_AUTO,
    PCI_WINDOW_NONE,
    PLACEMENT_CHOICES,
    RENDERING_MODE,
    RESERVE_MODES,
    SCHEDULER_POLICIES,
    VM_MODES,
    placement_policy_of,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.model.autostart import AUTOSTART_MODES, AUTOSTART_STORAGES, MAX_START_ORDER
from vgpuctl.model.file_content import is_file_content
from vgpuctl.model.names import is_visible, normalize_pci
from vgpuctl.model.numbers import format_size, parse_disk_size, parse_memory_size
from vgpuctl.value import Value

MIN_VM_MEMORY_MIB = 64
MIN_WINDOW_MIB, MAX_WINDOW_MIB = 1024, 64 << 20
MAX_VCPUS = 4096
MAX_HOTPLUG_SLOTS = 16
MAX_VFS = 256
MAX_NUMA_NODES = 1024
_UUID_PATTERN = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
TEMPLATE_PATTERN = r"[A-Za-z0-9_-]{1,64}"
PARAM_PATTERN = r"[a-z_]+=[!-+\--~]+"
_NUMBER_LIKE = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_PROFILE_COUNT = re.compile(r"(.*):([^:]*)", re.DOTALL)
_QUOTE_ADDRESS = (
    'is a number, not a PCI address: quote the PCI address, like "0000:3b:00.0" '
    "(a YAML 1.1 tool reads an unquoted address as a base-60 number)"
)


class Problem(Value):
    """One problem: the path of the field in the spec (empty: the whole spec) and a sentence."""

    path: tuple[str | int, ...]
    text: str
    at_key: bool = False
    """The key itself is wrong, not its value."""


class ValidationError(ValueError):
    """A value with several problems, or with problems inside it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems


def suggest_word(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the most similar known word, or an empty text."""
    similar = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), 1, 0.6)
    return f" (did you mean '{similar[0]}'?)" if similar else ""


def format_path(path: tuple[str | int, ...]) -> str:
    """Return a path in readable form: `disk[1]`, `defaults.memory`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def as_text(value: object) -> str:
    """Return a text unchanged; a number or a boolean is refused with the hint to quote it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        raise ValueError(f"{_format_value(value)} is not text: put it in quotes")
    raise ValueError(f"expected text, not {_type_name(value)}")


def name(value: object) -> str:
    """Check a VM's name: it becomes part of file names and of libvirt's paths."""
    text = as_text(value)
    if re.fullmatch(r"[^{}]*\{(:0?[0-9]*d?)?\}[^{}]*", text):
        raise ValueError(f"{_quote(text)} is a pattern for several VMs: --count N makes N of them")
    if not re.fullmatch(NAME_PATTERN, text):
        raise ValueError(
            f"{_quote(text)} is not a name: at most 63 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return text


def profile(value: object) -> str:
    """Return one requested profile as `PROFILE` or, for several of it, `PROFILE:N`."""
    profile_name, count = split_profile(as_text(value))
    return profile_name if count == 1 else f"{profile_name}:{count}"


def split_profile(text: str) -> tuple[str, int]:
    """Return profile and count of `PROFILE[:N]`."""
    match = _PROFILE_COUNT.fullmatch(text)
    profile_name, count = (match[1].strip(), match[2].strip()) if match else (text.strip(), "1")
    if not profile_name or len(profile_name) > 128 or _has_unprintable(profile_name):
        raise ValueError(f"{_quote(text)} is not a profile: write it like A100-4C, or A100-4C:2 for two")
    if not re.fullmatch("[0-9]{1,4}", count, re.ASCII) or int(count) < 1:
        raise ValueError(f"the count after ':' in {_quote(text)} must be a number from 1 to 9999, like A100-4C:2")
    return profile_name, int(count)


def gpu(value: object) -> str:
    """Return a GPU's address in the kernel's spelling, or the model as typed."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{_format_value(value)} {_QUOTE_ADDRESS}")
    text = _check_printable(as_text(value), "a GPU: specify its address like 0000:3b:00.0, or a model like A100")
    if _NUMBER_LIKE.fullmatch(text):
        raise ValueError(f"'{text}' is not a GPU: GPUs are named by PCI address or model; vgpuctl list-gpus shows them")
    return normalize_pci(text) or text


def reason(value: object) -> str:
    """Check a sentence for people: visible characters in one line, at most 255."""
    return _check_printable(as_text(value), "a reason: one line of at most 255 visible characters")


def gpu_key(value: object) -> str:
    """Return a key of host.yaml's `gpus:`: an address in the kernel's spelling, a model as typed, or `all`."""
    text = gpu(value)
    return pci_address(value) if ":" in text else text


def allowed_profile(value: object) -> str:
    """Check one profile that may be placed on a GPU; it has no count."""
    text, count = split_profile(as_text(value))
    if count != 1:
        raise ValueError(f"{_quote(as_text(value))} has a count: expected a profile without one, like A100-4C")
    return text


def name_pattern(value: object) -> str:
    """Check a pattern of VM names: ranges and lists in braces, and globs.

    Raises:
        ValueError: it is none, or it has a range in brackets.
    """
    text = as_text(value)
    if not re.fullmatch(r"[A-Za-z0-9._*?\[\]{},:!-]{1,255}", text):
        raise ValueError(f"{_quote(text)} is not a pattern of VM names, like vdi-*")
    try:
        name_patterns.expand_braces(text)
    except InvalidInput as error:
        raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from error
    return text


def one_of(allowed: tuple[str, ...]) -> Callable[[object], str]:
    """Return the rule for a field that takes one of a few words."""

    def rule(value: object) -> str:
        text = as_text(value)
        if text not in allowed:
            words = ", ".join(allowed[:-1]) + " or " + allowed[-1]
            raise ValueError(f"{_quote(text)} is not {words}{suggest_word(text, allowed)}")
        return text

    return rule


def pci_address(value: object) -> str:
    """Return a PCI address in the kernel's spelling."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{_format_value(value)} {_QUOTE_ADDRESS}")
    text = as_text(value)
    address = normalize_pci(text)
    if address is None:
        raise ValueError(f"{_quote(text)} is not a PCI address: write it like 0000:3b:00.0")
    return address


def carrier(value: object) -> str:
    """Return an mdev's UUID in lower case, or a PCI address in the kernel's spelling."""
    if isinstance(value, str) and re.fullmatch(_UUID_PATTERN, value, re.ASCII):
        return value.lower()
    return pci_address(value)


mode = one_of(VM_MODES)
gpu_mode = one_of(GPU_MODES)
os_kind = one_of(OS_KINDS)
reserve = one_of(RESERVE_MODES)
autostart = one_of(AUTOSTART_MODES)
autostart_storage = one_of(AUTOSTART_STORAGES)
_placement = one_of(PLACEMENT_CHOICES)


def placement(value: object) -> str:
    """Return the placement policy that a word names, also a word of another system."""
    text = as_text(value)
    return placement_policy_of(text) or _placement(text)


scheduler = one_of(SCHEDULER_POLICIES)


def memory(value: object) -> str:
    """Return a memory size in its shortest spelling."""
    mib = parse_memory_size(_size_text(value))
    if mib < MIN_VM_MEMORY_MIB:
        raise ValueError(
            f"{format_size(mib)} of memory is not enough for a VM (a bare number is MiB): "
            f"at least {MIN_VM_MEMORY_MIB}MiB"
        )
    return format_size(mib)


def vf_memory(value: object) -> str:
    """Return the GPU memory of a VF in its shortest spelling. The firmware takes steps of 2 MiB (guc_klvs_abi.h)."""
    mib = parse_memory_size(_size_text(value))
    if mib % 2:
        raise ValueError(f"{format_size(mib)} of GPU memory is no multiple of 2MiB (a bare number is MiB)")
    return format_size(mib)


def disk(value: object) -> str:
    """Return a disk's size in its shortest spelling, or the path of an existing one."""
    text = _size_text(value)
    if text.startswith(("/", "./", "../", "~")):
        return path(text)
    if not re.match("[0-9]", text):
        raise ValueError(
            f"{_quote(text)} is neither a size like 100GiB nor an absolute path like /var/lib/vms/data.qcow2"
        )
    return format_size(parse_disk_size(text))


def disk_size_mib(value: object) -> int:
    """Return a disk's size in MiB; a bare number is GiB."""
    return parse_disk_size(_size_text(value))


def pci_window(value: object) -> str:
    """Return `auto`, `none`, or the window's size in its shortest spelling."""
    text = _size_text(value)
    if text.lower() in (PCI_WINDOW_AUTO, PCI_WINDOW_NONE):
        return text.lower()
    mib = parse_disk_size(text)
    if not MIN_WINDOW_MIB <= mib <= MAX_WINDOW_MIB:
        raise ValueError(f"{_quote(text)} is not between 1GiB and 64TiB (a bare number is GiB)")
    return format_size(mib)


def is_path(disk_text: str) -> bool:
    """Return whether a checked disk value is the path of an existing disk."""
    return disk_text.startswith("/")


def path(value: object) -> str:
    """Check the path of a file on the host."""
    text = as_text(value)
    if not text.startswith("/"):
        raise ValueError(f"{_quote(text)} is not an absolute path: start with /")
    if _has_unprintable(text) or text.endswith("/"):
        raise ValueError(f"{_quote(text)} is not the path of a file")
    return text


def secret_path(value: object) -> str:
    """Check the path of a file that may hold secrets. A value that is none is not quoted: it may be the content."""
    checked: str | None = None
    if isinstance(value, str) and not is_file_content(value):
        with suppress(ValueError):
            checked = path(value)
    if checked is None:
        raise ValueError(
            "expected the absolute path of a file, not its content: start with / "
            "(the value is not shown, because it may contain passwords)"
        )
    return checked


def secret_path_or_mapping(value: object) -> str:
    """Check the path of a file that may hold secrets; its content as a mapping becomes JSON, which is YAML too."""
    if not isinstance(value, Mapping):
        return secret_path(value)
    import json  # loads slowly, and only this needs it

    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError("it contains a value that JSON cannot hold, such as a date: put it in quotes") from error


def resource_name(value: object) -> str:
    """Check the name of a libvirt network or storage pool."""
    text = _check_printable(as_text(value), "a name")
    if "/" in text:
        raise ValueError(f"{_quote(text)} is not a name: it contains a '/'")
    return text


def template(value: object) -> str:
    """Check a template's name: it becomes a file name below /etc/vgpuctl/templates."""
    text = as_text(value)
    if not re.fullmatch(TEMPLATE_PATTERN, text):
        raise ValueError(f"{_quote(text)} is not a template name: letters, digits, '_' and '-' only")
    return text


def whole_number(minimum: int, maximum: int) -> Callable[[object], int]:
    """Return the rule for a count between two bounds."""

    def rule(value: object) -> int:
        if isinstance(value, str) and value.isdigit():
            raise ValueError(f"{_quote(value)} is text: write the number without quotes")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{_format_value(value)} is not a whole number")
        if not minimum <= value <= maximum:
            raise ValueError(f"{value} is not between {minimum} and {maximum}")
        return value

    return rule


vcpus = whole_number(1, MAX_VCPUS)
numa_node = whole_number(0, MAX_NUMA_NODES - 1)
gpus = whole_number(1, MAX_VGPUS_PER_VM)
start_order = whole_number(0, MAX_START_ORDER)
hotplug_slots = whole_number(0, MAX_HOTPLUG_SLOTS)
vfs = whole_number(0, MAX_VFS)
deadline_seconds = whole_number(1, 3600)
hold_seconds = whole_number(0, 3600)


def boolean(value: object) -> bool:
    """Check a boolean field."""
    if not isinstance(value, bool):
        raise ValueError(f"{_format_value(value)} is not true or false")
    return value


def vgpu_params(value: object) -> dict[str, str]:
    """Return the driver's parameters by key, sorted: from a mapping, one `key=value` text, or a list of them.

    The driver reads one line `key=value,key=value` (file vgpu_params of an mdev or VF), so a value has no comma and no
    white space.
    """
    if isinstance(value, Mapping):
        pairs = [(as_text(key), _param_value(entry)) for key, entry in value.items()]
    else:
        lines = [value] if isinstance(value, str) else value
        if not isinstance(lines, list | tuple):
            raise ValueError(f"expected a mapping or a list of key=value, not {_type_name(value)}")
        pairs = [_split_pair(as_text(line)) for line in lines]
    params: dict[str, str] = {}
    for key, entry in pairs:
        if not re.fullmatch(PARAM_PATTERN, f"{key}={entry}") or "=" in key:
            raise ValueError(
                f"{_quote(f'{key}={entry}')} is not a vGPU parameter: the key has a-z and '_', "
                "the value no white space and no comma"
            )
        if key in params:
            raise ValueError(f"the vGPU parameter '{key}' is given twice")
        params[key] = entry
    return dict(sorted(params.items()))


_NEEDS_DEVICE = (
    *("spread_group", "vgpu_params", "license", "guest_driver", "guest_sharing"),
    *("force_console", "force_reset"),
)
"""Fields about a device that the guest gets."""


def find_contradictions(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    """Check fields together; works on unchecked values too, so that one check shows all problems."""
    problems: list[Problem] = []
    profiles = _as_list(fields.get("profile"))
    vm_mode = fields.get("mode")
    if vm_mode in ("sriov", "passthrough", RENDERING_MODE) and profiles:
        problems.append(Problem(("profile",), f"mode {vm_mode} takes a gpu, not a profile"))
    for field, text in (("scheduler", "a scheduler"), ("placement", "a placement policy")):
        if fields.get(field) and (
            vm_mode in ("passthrough", RENDERING_MODE) or (vm_mode == "sriov" and field == "scheduler")
        ):
            problems.append(Problem((field,), f"mode {vm_mode} has no vGPUs, and {text} applies only to vGPUs"))
    if vm_mode == RENDERING_MODE:
        problems += [
            Problem((field,), f"mode {RENDERING_MODE} gives the guest no GPU: {field} is for a VM that has one")
            for field in _NEEDS_DEVICE
            if fields.get(field)
        ]
        if fields.get("cpu_pin") == CPU_PIN_AUTO:
            problems.append(Problem(("cpu_pin",), f"mode {RENDERING_MODE} has no GPU near which to pin: name the CPUs"))
    problems += _find_gpu_count_problems(fields)
    for gpu_name in [entry for entry in _as_list(fields.get("not_gpu")) if entry in _as_list(fields.get("gpu"))]:
        problems.append(Problem(("not_gpu",), f"{_quote(str(gpu_name))} is also given as gpu"))
    counts = [_vgpu_count(entry) for entry in profiles]
    if sum(counts) > MAX_VGPUS_PER_VM:
        text = f"{sum(counts)} vGPUs requested; a VM can have at most {MAX_VGPUS_PER_VM}"
        problems.append(Problem(("profile",), text))
    disks = [entry for entry in _as_list(fields.get("disk")) if isinstance(entry, str)]
    if fields.get("image") and disks and is_path(disks[0]):
        text = "the first disk becomes the clone of image: specify its size first, then existing disks"
        problems.append(Problem(("disk",), text))
    paths = [entry for entry in disks if is_path(entry)]
    for duplicate in sorted({entry for entry in paths if paths.count(entry) > 1}):
        problems.append(Problem(("disk",), f"the disk {_quote(duplicate)} is given twice"))
    return tuple(problems)


def find_missing_fields(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    """Return what a VM still lacks before it can be created."""
    vm_mode = fields.get("mode") or "vgpu"
    if vm_mode == "vgpu" and not fields.get("profile"):
        return (Problem((), "no profile given: specify the VM's vGPU, like A100-4C"),)
    if vm_mode not in ("vgpu", RENDERING_MODE) and not fields.get("gpu") and not fields.get("gpus"):
        return (Problem(("mode",), f"mode {vm_mode} needs a gpu: the device to pass through, or gpus: how many"),)
    return ()


def implied_gpus(fields: Mapping[str, object]) -> int | None:
    """Return how many whole GPUs a VM gets because their addresses are given; None where they do not say that."""
    names = _as_list(fields.get("gpu"))
    if fields.get("mode") != "passthrough" or not names:
        return None
    return len(names) if all(_is_address(entry) for entry in names) else None


def _find_gpu_count_problems(fields: Mapping[str, object]) -> list[Problem]:
    """Check the number of whole GPUs or VFs against the mode and the named GPUs: never silently another number."""
    vm_mode, count, names = fields.get("mode"), fields.get("gpus"), _as_list(fields.get("gpu"))
    if vm_mode != "passthrough":
        text = "gpus counts whole GPUs or plain VFs: specify mode passthrough or sriov; PROFILE:N is N vGPUs"
        return [Problem(("gpus",), text)] if count is not None and vm_mode != "sriov" else []
    problems = [
        Problem(("gpu",), f"the GPU {_quote(str(entry))} is given twice")
        for entry in dict.fromkeys(names)
        if names.count(entry) > 1
    ]
    models = [entry for entry in names if not _is_address(entry)]
    if count is None and models and len(names) > 1:
        text = f"{len(names)} are given, and not all are addresses: gpus (--gpus N) says how many of them the VM gets"
        problems.append(Problem(("gpu",), text))
    if isinstance(count, int) and names and not models and count > len(names):
        problems.append(Problem(("gpus",), f"{count} are requested, but gpu names only {len(names)}"))
    return problems


def _is_address(entry: object) -> bool:
    return isinstance(entry, str) and normalize_pci(entry) is not None


def _vgpu_count(entry: object) -> int:
    try:
        return split_profile(entry)[1] if isinstance(entry, str) else 0
    except ValueError:
        return 0


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _split_pair(line: str) -> tuple[str, str]:
    key, equals, entry = line.partition("=")
    if not equals:
        raise ValueError(f"{_quote(line)} is not key=value, like frame_rate_limiter=0")
    return key, entry


def _param_value(value: object) -> str:
    if isinstance(value, bool):
        raise ValueError("a vGPU parameter is not true or false: write 1 or 0")
    return str(value) if isinstance(value, int) else as_text(value)


def _size_text(value: object) -> str:
    if isinstance(value, bool):
        raise ValueError(f"{_format_value(value)} is not a size")
    return str(value) if isinstance(value, int | float) else as_text(value)


def _check_printable(text: str, what: str) -> str:
    if not text.strip() or text != text.strip() or len(text) > 255 or _has_unprintable(text):
        raise ValueError(f"{_quote(text)} is not {what}")
    return text


def _has_unprintable(text: str) -> bool:
    """Return whether XML, YAML or a terminal would not carry the text unchanged, or people would not see part of it."""
    return not all(map(is_visible, text))


def _quote(text: str) -> str:
    shown = ascii(text)[1:-1] if _has_unprintable(text) else text
    return f"'{shown}'" if len(shown) <= 200 else f"'{shown[:200]}…'"


def _format_value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quote(value) if isinstance(value, str) else str(value)[:60]


def _type_name(value: object) -> str:
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list | tuple) else "a mapping" if isinstance(value, Mapping) else "this"
