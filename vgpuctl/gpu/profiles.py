# SPDX-License-Identifier: Apache-2.0
"""Find the vGPU types that a profile in a request selects.

NVIDIA's short names are the last word of the driver's name and are not unique over GPU models, so a short name that
selects different types on this host is refused. vgpuctl suggests similar names, but never substitutes one. A request
can leave the model open: `2B` selects that profile of any model, `A40-2B|A16-2B` either of two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity, NotFound, Refused, VgpuctlError
from vgpuctl.gpu.division import is_given_whole, name_holders
from vgpuctl.makers import enable_vfs_hint, offers_profiles_with_vfs, slicing_notes
from vgpuctl.model.gpu import Backend, Gpu, Vgpu, VgpuType
from vgpuctl.model.names import ProfileName, parse_profile_name, strip_board
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot


def matches_type(vgpu_type: VgpuType, text: str) -> bool:
    """Return whether a text selects this type: its profile, full name or type id, or its profile without the model.

    Case does not matter. Of several texts separated by `|`, any may match.
    """
    return any(_matches_one(vgpu_type, part) for part in text.split("|"))


def _matches_one(vgpu_type: VgpuType, text: str) -> bool:
    return text.lower() in (vgpu_type.name.lower(), vgpu_type.type_id) or matches_profile_name(vgpu_type.profile, text)


def matches_profile_name(profile: str, text: str) -> bool:
    """Return whether one text selects a profile by what needs no driver: its name, or its name without the model."""
    lower = text.lower()
    return lower == profile.lower() or (text[:1].isdigit() and lower == strip_board(profile).lower())


def omits_model(text: str) -> bool:
    """Return whether a requested profile leaves the GPU's model open."""
    name = parse_profile_name(text)
    return "|" in text or (name is not None and not name.board)


def find_types(snapshot: Snapshot, gpus: Sequence[Gpu], text: str) -> Mapping[str, VgpuType]:
    """Return GPU address -> type for every GPU of `gpus` that has the profile; of several texts the first that matches.

    Raises:
        NotFound: no GPU has it; the message suggests similar names.
        NoCapacity: a GPU of its board is here, but the driver lists only what can be created now, and not this profile.
        HostCannot: a GPU of its model is here, and its VFs are off.
        InvalidInput: the short name selects different types on this host, and the request does not leave the model
            open.
    """
    type_by_address: dict[str, VgpuType] = {}
    for gpu in gpus:
        match = next((match for part in text.split("|") if (match := _find_type(gpu, part)) is not None), None)
        if match is not None:
            type_by_address[gpu.address] = match
    names = {t.name for t in type_by_address.values()}
    if len(names) > 1 and not omits_model(text):
        raise InvalidInput(
            f"'{text}' means different vGPU types on this host: {', '.join(sorted(names))}",
            hint="use the full name, or select one GPU with --gpu ADDRESS",
            profile=text,
            names=sorted(names),
        )
    if type_by_address:
        return type_by_address
    raise _unknown_profile_error(snapshot, gpus, text)


def _find_type(gpu: Gpu, text: str) -> VgpuType | None:
    """Return the type that one text selects on a GPU: an exact match first, else one that differs only in case.

    Raises:
        InvalidInput: two of its types differ only in case.
    """
    matches = [t for t in gpu.types if _matches_one(t, text)]
    exact = next((t for t in matches if text in (t.profile, t.name, t.type_id, strip_board(t.profile))), None)
    case_variants = sorted({t.profile for t in matches if t.profile.lower() == matches[0].profile.lower()})
    if exact is None and len(case_variants) > 1:
        raise InvalidInput(
            f"'{text}' may be {' or '.join(case_variants)} on {gpu.address}: they differ only in case",
            hint=f"use the driver's spelling: {case_variants[0]}",
            profile=text,
            names=case_variants,
        )
    return exact or next(iter(matches), None)


def find_ambiguous_names(gpus: Sequence[Gpu]) -> Mapping[str, tuple[str, ...]]:
    """Return the profiles that name different types on these GPUs, with the types' full names."""
    names: dict[str, set[str]] = {}
    for gpu in gpus:
        for vgpu_type in gpu.types:
            names.setdefault(vgpu_type.profile, set()).add(vgpu_type.name)
    return {profile: tuple(sorted(full_names)) for profile, full_names in names.items() if len(full_names) > 1}


def drop_ambiguous_gpus(gpus: Sequence[Gpu], types_by_gpu: Sequence[Mapping[str, VgpuType]]) -> Sequence[Gpu]:
    """Drop the GPUs on which a requested profile is the name of another type. `types_by_gpu`: results of `find_types`.

    Raises:
        InvalidInput: such a GPU is needed for another profile.
    """
    for types in types_by_gpu:
        profiles = {t.profile for t in types.values()}
        same_name_types = {
            g.address: [t for t in g.types if t.profile in profiles] for g in gpus if g.address not in types
        }
        namesakes = {address: matching[0] for address, matching in same_name_types.items() if matching}
        if any(address in other for address in namesakes for other in types_by_gpu):
            names = sorted({t.name for t in (*types.values(), *namesakes.values())})
            raise InvalidInput(
                f"types of different GPU models have the same profile name here: {', '.join(names)}",
                hint="use --gpu MODEL to select one GPU model",
                names=names,
            )
        gpus = [gpu for gpu in gpus if gpu.address not in namesakes]
    return gpus


def require_one_profile(types: Mapping[str, VgpuType], text: str) -> str:
    """Return the profile of these types, where exactly one is allowed.

    Raises:
        InvalidInput: the request leaves the model open, and GPUs here have different profiles.
    """
    names = sorted({t.profile for t in types.values()})
    if len(names) > 1:
        raise InvalidInput(
            f"'{text}' may be {' or '.join(names)} on this host; specify one of them",
            hint=f"name the model: {names[0]}",
            profile=text,
            names=names,
        )
    return names[0]


def _unknown_profile_error(snapshot: Snapshot, gpus: Sequence[Gpu], text: str) -> VgpuctlError:
    partial_gpus = [g for g in gpus if _is_catalogue_partial(g, snapshot.vgpus_on(g.address))]
    requested_boards = {name.board.lower() for name in map(parse_typed_name, text.split("|")) if name is not None}
    boards = {
        parsed.board.lower() for g in partial_gpus for parsed in _known_profile_names(g, snapshot.vgpus_on(g.address))
    }
    if requested_boards & boards or ("" in requested_boards and boards):
        busy = ", ".join(f"{g.address} ({count_text(len(snapshot.vgpus_on(g.address)), 'vGPU')})" for g in partial_gpus)
        return NoCapacity(
            f"no room for {text}: no GPU offers it now",
            hint=f"a GPU in use lists only what still fits on it; in use: {busy}",
            profile=text,
            gpus=[g.address for g in partial_gpus],
        )
    vfs_off_gpus = [g for g in gpus if g.backend is None and g.vfs_total and offers_profiles_with_vfs(g)]
    without_vfs = next(
        (g for g in vfs_off_gpus if any(is_board_of_model(g.model, board) for board in requested_boards)), None
    )
    if without_vfs is not None:
        return vfs_off_error(without_vfs, f", and it may offer {text} once they are on")
    offered = sorted({t.profile for g in gpus for t in g.types})
    similar = similar_profiles(text, offered)
    hint = f"did you mean {', '.join(similar)}?" if similar else "vgpuctl list-profiles shows what this host offers"
    if vfs_off_gpus:
        hint += f"; the VFs of {', '.join(g.address for g in vfs_off_gpus)} are off; they offer profiles only when on"
    if not offered:
        on_gpus = [(g, snapshot.vgpus_on(g.address)) for g in gpus]
        whole = [f"all of {g.address} is assigned to {name_holders(on)}" for g, on in on_gpus if is_given_whole(g, on)]
        why = [*whole, *slicing_notes(gpus)]
        hint = "; ".join(["no GPU here offers vGPU profiles now", *why, "vgpuctl list-gpus --all shows why"])
    return NotFound(f"no GPU on this host offers the profile '{text}'", hint=hint, profile=text, near=similar)


def similar_profiles(text: str, offered: Iterable[str]) -> list[str]:
    """Return up to three offered profiles that somebody may have meant, the most similar first; `2B` is of any GPU."""
    by_lowercase = {one.lower(): one for one in (map(strip_board, offered) if omits_model(text) else offered)}
    close = difflib.get_close_matches(text.lower(), sorted(by_lowercase), n=3, cutoff=0.5)
    return [by_lowercase[one] for one in close]


def vfs_off_error(gpu: Gpu, consequence: str = "", hint: str | None = None) -> HostCannot:
    """Return the error for a GPU that offers nothing because its VFs are off; `hint`: what helps, if not set-mode."""
    return HostCannot(
        f"the VFs of {gpu.address} ({gpu.model}) are off: 0 of {gpu.vfs_total} enabled{consequence}",
        hint=hint or enable_vfs_hint(gpu),
        check="vfs-off",
        gpu=gpu.address,
        vfs_total=gpu.vfs_total,
    )


_MODEL_SUFFIXES = ("", "d", "dx", "x", "l", "xl", "xm", "xs", "p", "c")
"""What NVIDIA's board names append to a model for its memory and form factor: A100D, H100XM (vgpuConfig.xml)."""


def is_board_of_model(model: str, board: str) -> bool:
    """Return whether a board name in lower case may be a GPU's model: A100D is NVIDIA A100 80GB PCIe."""
    words = re.findall("[a-z0-9]+", model.lower())
    names = {"".join(words[start:end]) for start in range(len(words)) for end in range(start + 1, len(words) + 1)}
    if board == "dc":
        return "rtxpro" in names
    plain = board.replace("-", "")
    return any(plain == name + suffix for name in names for suffix in _MODEL_SUFFIXES)


def _is_catalogue_partial(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Return whether the driver hides types now: vendor-vf in use, and NVML does not complete the list."""
    complete = any(t.max_per_gpu is not None for t in gpu.types)
    return gpu.backend is Backend.VENDOR_VF and bool(taken) and not complete


def parse_typed_name(text: str) -> ProfileName | None:
    """Return the parts of a requested profile's name; a driver's full name ends with the short one."""
    return parse_profile_name(text.rsplit(" ", 1)[-1])


def _known_profile_names(gpu: Gpu, taken: Sequence[Vgpu]) -> list[ProfileName]:
    texts = [t.profile for t in gpu.types] + [v.profile for v in taken if v.profile]
    return [n for n in map(parse_profile_name, texts) if n is not None]


def check_combination(profiles: Sequence[str]) -> None:
    """Check the rules for several vGPUs in one VM.

    Raises:
        Refused: an exclusive type next to another vGPU, or different boards or series.
    """
    if len(profiles) < 2:
        return
    parsed = {p: parse_profile_name(p) for p in profiles}
    exclusive = sorted(p for p, n in parsed.items() if n is not None and n.exclusive)
    if exclusive:
        raise Refused(
            f"{', '.join(exclusive)} cannot be combined with another vGPU in one VM",
            hint="use C or Q series for several vGPUs: A and B series and ME types allow one vGPU per VM",
            profiles=list(profiles),
        )
    if len({_board_and_series(p) for p in profiles}) > 1:
        raise Refused(
            f"the vGPUs of one VM must have the same board type and series, not {', '.join(sorted(set(profiles)))}",
            hint="choose profiles of the same GPU model and letter",
            profiles=list(profiles),
        )


def keep_combinable(types: Mapping[str, VgpuType], existing_profiles: Sequence[str]) -> Mapping[str, VgpuType]:
    """Return the types whose board and series can share a VM with these profiles; all types when none can."""
    boards_and_series = {_board_and_series(profile) for profile in existing_profiles}
    combinable = {
        address: vgpu_type
        for address, vgpu_type in types.items()
        if boards_and_series <= {_board_and_series(vgpu_type.profile)}
    }
    return combinable or types


def _board_and_series(profile: str) -> tuple[str, str]:
    name = parse_profile_name(profile)
    return (name.board, name.series) if name is not None else (profile, "")
