# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU can ever offer a profile: empty, with its VFs on, and with MIG as the profile needs it.

A driver that hides types which do not fit now may still have them, so only a complete list of types counts as a no.
Without a list, a GPU of another model than the profile's board cannot have it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import chain

from vgpuctl.config.host_spec import HostSpec, entry_matches
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.gpu.profiles import is_board_of_model, matches_type, parse_typed_name
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Backend, Gpu


def can_offer(gpu: Gpu, text: str) -> bool | None:
    """Return whether a GPU can ever offer a profile; None if that is unknown."""
    if any(matches_type(vgpu_type, text) for vgpu_type in gpu.types):
        return True
    if gpu.types and _has_complete_list(gpu):
        return False
    boards = [name.board.lower() for name in map(parse_typed_name, text.split("|")) if name is not None]
    if not boards and maker_of(gpu).has_nvml and " " not in text:
        return False  # no name of NVIDIA's
    if not boards or "" in boards or has_no_name(gpu):
        return None
    return None if any(is_board_of_model(gpu.model, board) for board in boards) else False


def has_no_name(gpu: Gpu) -> bool:
    """Return whether only the PCI ids of a GPU are known."""
    return gpu.pci_id is not None and gpu.model.endswith(gpu.pci_id)


def suggest_offered(text: str, gpus: Sequence[Gpu]) -> str:
    """Return ` (did you mean X?)` for the most similar profile of these GPUs, or what shows them all."""
    offered = sorted({vgpu_type.profile for gpu in gpus for vgpu_type in gpu.types})
    similar = difflib.get_close_matches(text, offered, 1, 0.6)
    return f" (did you mean {similar[0]}?)" if similar else ""


def find_impossible_profiles(spec: HostSpec, gpus: Sequence[Gpu], text: str, name: str) -> tuple[str, ...]:
    """Return a sentence, with its place, for each profile in host.yaml that no GPU of its entry can ever offer.

    `text`, `name`: of the file that `spec` was read from. An entry that matches no GPU is not a matter of profiles.
    """
    sentences: dict[str, None] = {}
    for path, profile, matching in chain(_gpu_entry_profiles(spec, gpus), _vgpu_entry_profiles(spec, gpus)):
        if not matching or any(can_offer(gpu, profile) is not False for gpu in matching):
            continue
        position = load_document(text, name).position(path)
        where = ", ".join(gpu.address for gpu in matching[:3]) + (" and others" if len(matching) > 3 else "")
        sentences[
            f"{name}:{position.line}: {'.'.join(map(str, path[:2]))}: {where} can never offer the profile {profile}"
            f"{suggest_offered(profile, matching)}"
        ] = None
    return tuple(sentences)


_Place = tuple[tuple[str | int, ...], str, tuple[Gpu, ...]]


def _gpu_entry_profiles(spec: HostSpec, gpus: Sequence[Gpu]) -> Iterator[_Place]:
    for key, entry in spec.gpus.items():
        matching = tuple(gpu for gpu in gpus if entry_matches(key, gpu))
        for number, profile in enumerate(entry.profiles or ()):
            yield ("gpus", key, "profiles", number), profile, matching


def _vgpu_entry_profiles(spec: HostSpec, gpus: Sequence[Gpu]) -> Iterator[_Place]:
    for vgpu_name, entry in spec.vgpus.items():
        matching = tuple(gpu for gpu in gpus if gpu.address == entry.gpu)
        yield ("vgpus", vgpu_name, "profile"), entry.profile, matching


def _has_complete_list(gpu: Gpu) -> bool:
    """Return whether the types of a GPU are all that it can have: mdev lists them, and NVML completes VFIO's list."""
    if gpu.backend in (Backend.MDEV_PF, Backend.MDEV_VF):
        return True
    return any(vgpu_type.max_per_gpu is not None for vgpu_type in gpu.types)
