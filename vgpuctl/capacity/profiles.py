# SPDX-License-Identifier: Apache-2.0
"""Find the types that a typed profile means.

NVIDIA's short names are the last word of the driver's name and are not unique over GPU models, so a short name
that means different types on this host is refused. Suggestions are offered, a neighbour is never taken. Who leaves the
model open says so: `2B` is that of any model, `A40-2B|A16-2B` either of two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity, NotFound, Refused, VgpuctlError
from vgpuctl.model.commands import vfs_on_hint
from vgpuctl.model.gpu import Backend, Gpu, Vgpu, VgpuType
from vgpuctl.model.profile_name import ProfileName, parse_name, without_model
from vgpuctl.model.snapshot import Snapshot


def means(known: VgpuType, text: str) -> bool:
    """Say whether what was typed names this type: its profile, full name or type id, or what is behind the model in it.

    Capital and small letters are alike. Of several with `|` between them each one counts.
    """
    return any(_means(known, one) for one in text.split("|"))


def _means(known: VgpuType, one: str) -> bool:
    return one.lower() in (known.name.lower(), known.type_id) or is_named(known.profile, one)


def is_named(profile: str, one: str) -> bool:
    """Say whether one text names a profile by what no driver need tell: its name, or what is behind the model in it."""
    text = one.lower()
    return text == profile.lower() or (one[:1].isdigit() and text == without_model(profile).lower())


def leaves_open(text: str) -> bool:
    """Say whether a typed profile leaves the GPU's model open."""
    name = parse_name(text)
    return "|" in text or (name is not None and not name.board)


def find(snapshot: Snapshot, gpus: Sequence[Gpu], text: str) -> Mapping[str, VgpuType]:
    """Return GPU address -> type for every GPU of `gpus` that knows the profile; of several the first that it knows.

    Raises:
        NotFound: no GPU knows it; the message suggests near names.
        NoCapacity: its board is here, but the drivers list only what can be made now and this is not it.
        HostCannot: a GPU of its model is here, and its VFs are off.
        InvalidInput: the short name means different types on this host, and the model was not left open.
    """
    found: dict[str, VgpuType] = {}
    for gpu in gpus:
        match = next((match for one in text.split("|") if (match := _match(gpu, one)) is not None), None)
        if match is not None:
            found[gpu.address] = match
    names = {t.name for t in found.values()}
    if len(names) > 1 and not leaves_open(text):
        raise InvalidInput(
            f"'{text}' means different vGPU types on this host: {', '.join(sorted(names))}",
            hint="type the full name, or leave one GPU with --gpu ADDRESS",
            profile=text,
            names=sorted(names),
        )
    if found:
        return found
    raise _missing(snapshot, gpus, text)


def _match(gpu: Gpu, one: str) -> VgpuType | None:
    """Return the type that one text means on a GPU: the one that is spelled so, else the one that is named so.

    Raises:
        InvalidInput: two of its types differ in capital and small letters alone.
    """
    some = [t for t in gpu.types if _means(t, one)]
    exact = next((t for t in some if one in (t.profile, t.name, t.type_id, without_model(t.profile))), None)
    alike = sorted({t.profile for t in some if t.profile.lower() == some[0].profile.lower()})
    if exact is None and len(alike) > 1:
        raise InvalidInput(
            f"'{one}' may be {' or '.join(alike)} on {gpu.address}: they differ in capital letters alone",
            hint=f"type it as the driver does: {alike[0]}",
            profile=one,
            names=alike,
        )
    return exact or next(iter(some), None)


def shared_names(gpus: Sequence[Gpu]) -> Mapping[str, tuple[str, ...]]:
    """Return the profiles that mean different types on these GPUs, with the types' full names."""
    names: dict[str, set[str]] = {}
    for gpu in gpus:
        for known in gpu.types:
            names.setdefault(known.profile, set()).add(known.name)
    return {profile: tuple(sorted(some)) for profile, some in names.items() if len(some) > 1}


def without_namesakes(gpus: Sequence[Gpu], found: Sequence[Mapping[str, VgpuType]]) -> Sequence[Gpu]:
    """Return the GPUs without those on which a profile that is asked for means another type. `found`: as `find` says.

    Raises:
        InvalidInput: such a GPU is needed for another profile.
    """
    for types in found:
        profiles = {t.profile for t in types.values()}
        others = {g.address: [t for t in g.types if t.profile in profiles] for g in gpus if g.address not in types}
        namesakes = {address: some[0] for address, some in others.items() if some}
        if any(address in other for address in namesakes for other in found):
            names = sorted({t.name for t in (*types.values(), *namesakes.values())})
            raise InvalidInput(
                f"types of different GPU models have one profile name here: {', '.join(names)}",
                hint="ask for the profiles of one GPU model at a time: --gpu MODEL",
                names=names,
            )
        gpus = [gpu for gpu in gpus if gpu.address not in namesakes]
    return gpus


def the_one(found: Mapping[str, VgpuType], text: str) -> str:
    """Return the profile that was found, where it has to be one.

    Raises:
        InvalidInput: the model was left open, and GPUs here have different ones.
    """
    names = sorted({t.profile for t in found.values()})
    if len(names) > 1:
        raise InvalidInput(
            f"'{text}' may be {' or '.join(names)} on this host; here it has to be one of them",
            hint=f"name the model: {names[0]}",
            profile=text,
            names=names,
        )
    return names[0]


def _missing(snapshot: Snapshot, gpus: Sequence[Gpu], text: str) -> VgpuctlError:
    hidden = [g for g in gpus if _catalogue_is_partial(g, snapshot.taken_on(g.address))]
    asked = {name.board.lower() for name in map(typed_name, text.split("|")) if name is not None}
    boards = {b.board.lower() for g in hidden for b in _names_seen(g, snapshot.taken_on(g.address))}
    if asked & boards or ("" in asked and boards):
        busy = ", ".join(f"{g.address} ({len(snapshot.taken_on(g.address))} vGPUs)" for g in hidden)
        return NoCapacity(
            f"no room for {text}: no GPU offers it now",
            hint=f"a GPU in use lists only what can still be made on it; in use: {busy}",
            profile=text,
            gpus=[g.address for g in hidden],
        )
    off = [g for g in gpus if g.backend is None and g.vfs_total]
    without_vfs = next((g for g in off if any(_is_of_model(g.model, board) for board in asked)), None)
    if without_vfs is not None:
        return vfs_are_off(without_vfs, f", and it may have {text} once they are on")
    known = sorted({t.profile for g in gpus for t in g.types})
    words = sorted({without_model(profile) for profile in known}) if leaves_open(text) else known
    import difflib

    spelled = {word.lower(): word for word in words}
    near = [spelled[word] for word in difflib.get_close_matches(text.lower(), spelled, n=3, cutoff=0.5)]
    hint = f"did you mean {', '.join(near)}?" if near else "vgpuctl list-profiles shows what this host offers"
    if off:
        hint += f"; the VFs of {', '.join(g.address for g in off)} are off, what it offers shows once they are on"
    if not known:
        hint = "no GPU here offers vGPU profiles now; vgpuctl list-gpus --all says why"
    return NotFound(f"no GPU on this host knows the profile '{text}'", hint=hint, profile=text, near=near)


def vfs_are_off(gpu: Gpu, may: str = "") -> HostCannot:
    """Return the error for a GPU that offers nothing because its VFs are off."""
    return HostCannot(
        f"the VFs of {gpu.address} ({gpu.model}) are off: 0 of {gpu.vfs_total} enabled{may}",
        hint=vfs_on_hint(gpu),
        check="vfs-off",
        gpu=gpu.address,
        vfs_total=gpu.vfs_total,
    )


_FORMS = ("", "d", "dx", "x", "l", "xl", "xm", "xs", "p", "c")
"""What the boards of NVIDIA's profiles have behind a model for its memory and form: A100D, H100XM (vgpuConfig.xml)."""


def _is_of_model(model: str, board: str) -> bool:
    """Say whether a board of profile names, in small letters, may be a GPU's model: A100D is NVIDIA A100 80GB PCIe."""
    words = re.findall("[a-z0-9]+", model.lower())
    names = {"".join(words[at:end]) for at in range(len(words)) for end in range(at + 1, len(words) + 1)}
    if board == "dc":
        return "rtxpro" in names
    plain = board.replace("-", "")
    return any(plain == name + form for name in names for form in _FORMS)


def lists_all(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Say whether every type of a GPU is known: not while its VFs are off, nor where the driver hides some."""
    return not (gpu.backend is None and gpu.vfs_total) and not _catalogue_is_partial(gpu, taken)


def _catalogue_is_partial(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Say whether the driver hides types now: vendor-vf in use, and NVML does not complete the list."""
    complete = any(t.max_per_gpu is not None for t in gpu.types)
    return gpu.backend is Backend.VENDOR_VF and bool(taken) and not complete


def typed_name(one: str) -> ProfileName | None:
    """Return the parts of a typed profile's name; a driver's full name has the short one as its last word."""
    return parse_name(one.rsplit(" ", 1)[-1])


def _names_seen(gpu: Gpu, taken: Sequence[Vgpu]) -> list[ProfileName]:
    texts = [t.profile for t in gpu.types] + [v.profile for v in taken if v.profile]
    return [n for n in map(parse_name, texts) if n is not None]


def check_combination(profiles: Sequence[str]) -> None:
    """Check the rules for several vGPUs in one VM.

    Raises:
        Refused: an exclusive type beside another vGPU, or different boards or series.
    """
    if len(profiles) < 2:
        return
    parsed = {p: parse_name(p) for p in profiles}
    exclusive = sorted(p for p, n in parsed.items() if n is not None and n.exclusive)
    if exclusive:
        raise Refused(
            f"{', '.join(exclusive)} cannot be combined with another vGPU in one VM",
            hint="A and B series and ME types are exclusive; use C or Q series for several vGPUs",
            profiles=list(profiles),
        )
    if len({_board_and_series(p) for p in profiles}) > 1:
        raise Refused(
            f"the vGPUs of one VM must be of one board type and series, not {', '.join(sorted(set(profiles)))}",
            hint="choose profiles of the same GPU model and letter",
            profiles=list(profiles),
        )


def fitting(found: Mapping[str, VgpuType], beside: Sequence[str]) -> Mapping[str, VgpuType]:
    """Return those types that can be in one VM with these profiles by board and series; all of them when none can."""
    kinds = {_board_and_series(profile) for profile in beside}
    some = {address: known for address, known in found.items() if kinds <= {_board_and_series(known.profile)}}
    return some or found


def _board_and_series(profile: str) -> tuple[str, str]:
    name = parse_name(profile)
    return (name.board, name.series) if name is not None else (profile, "")
