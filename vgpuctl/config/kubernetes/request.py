# SPDX-License-Identifier: Apache-2.0
"""What a container asks for, from the words of its resources: so many devices of one maker, each so large.

A container cannot ask in the words of two systems: no cluster serves both, and which one counts would be a guess.
`nvidia.com/gpu` is the exception: HAMi took over that word, and adds its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from vgpuctl.config.kubernetes.pod_gpus import COUNT_LABEL, NOTHING_SAID, PodGpus
from vgpuctl.config.kubernetes.pods import Container
from vgpuctl.config.kubernetes.quantity import has_byte_suffix, parse_count, parse_quantity
from vgpuctl.config.kubernetes.words import (
    DOMAINS,
    GPUSHARE,
    HAMI,
    NVIDIA,
    ORION,
    PERCENT,
    PLUGIN,
    WORDS,
    Amount,
    Word,
    find_word,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.model.numbers import count_text, format_mib
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_MIG = re.compile(r"nvidia\.com/mig-(?P<slices>[1-8])g\.(?P<gb>[0-9]{1,3})gb(?P<media>\.me(\.all)?|\.gfx)?", re.ASCII)
_ORION_MEMORY, _ORION_CORES = "ORION_GMEM", "ORION_RATIO"
_WHOLE_DEVICES = frozenset({"nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"})
"""The words of NVIDIA's device plugin that HAMi took over. A label of the node may say that they are parts of GPUs."""
_SYSTEMS_OF_ONE_GPU = frozenset({PLUGIN, ORION})
"""Systems that may take the parts of one request from one GPU; the others take each from another GPU."""
_SHARED_WORD = "nvidia.com/gpu.shared"
_PLAUSIBLE_MIB = range(256, 512 * 1024)
"""What a container asks for of a GPU's memory, nearly always: of several units, the one with that is named first."""
MAX_DEVICES = 16
"""The vGPUs, or whole GPUs, that a VM can have."""


class DeviceRequest(Value):
    """What a container asks for. `count`: devices; each with `memory_mib` for programs, or a percentage of a GPU's.

    `cores_percent`: of a GPU's. `is_whole`: whole GPUs. `mig_slices`, `mig_gb`: a GPU instance, or a slice of another
    maker's, whose memory no word says. `words`: what was read; `model`: a part of the GPUs' model, where a word names
    it. `whole_mib`: what a whole GPU must have at least. `is_apart`: each device is of another GPU. `left_out`: what no
    VM has. `at`: `file:line`.
    """

    maker: str
    count: int
    at: str
    words: tuple[str, ...]
    memory_mib: int | None = None
    memory_percent: Fraction | None = None
    cores_percent: Fraction | None = None
    mig_slices: int | None = None
    mig_gb: int | None = None
    model: str | None = None
    whole_mib: int | None = None
    is_apart: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is for whole GPUs."""
        parts = (self.memory_mib, self.memory_percent, self.cores_percent, self.mig_slices)
        return all(part is None for part in parts)


class Assumed(Value):
    """What the user says of words whose unit a cluster decides. `factors`: of one unit, by the word.

    `command`: the one that converts these files, quoted for a shell; errors complete it.
    """

    factors: Mapping[str, float] = EMPTY_MAPPING
    command: str = "vgpuctl import-job -"


NOTHING_ASSUMED = Assumed()


def parse_assumed(texts: Sequence[str], command: str = NOTHING_ASSUMED.command) -> Assumed:
    """Return what texts such as `aliyun.com/gpu-mem=MiB` say. `command`: as in `Assumed`.

    Raises:
        InvalidInput: a text is none of these.
    """
    result: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        word = find_word(name)
        if word is None or not (word.choices or word.any_number):
            names = ", ".join(w.name for w in WORDS if w.choices or w.any_number)
            raise InvalidInput(f"--assume {text!a}: only these words can be assumed: {names}", hint=_option(name))
        factor = dict(word.choices).get(value)
        if word.any_number and re.fullmatch(r"[1-9][0-9]{0,2}", value, re.ASCII):
            factor = float(value)
        if factor is None:
            raise InvalidInput(f"--assume {text!a}: {name} is {_choices(word)}", hint=_option(name))
        result[name] = factor
    return Assumed(result, command)


def _choices(word: Word) -> str:
    return "a number of shares, from 1 to 999" if word.any_number else " or ".join(name for name, _ in word.choices)


def _option(name: str) -> str:
    """Return an option that is accepted, for this word or, where nobody decides its unit, for another."""
    word = find_word(name)
    if word is None or not (word.choices or word.any_number):
        return f"--assume {_SHARED_WORD}=4"
    return f"--assume {name}={word.choices[0][0] if word.choices else 4}"


def _size(count: int, factor: float) -> str:
    return f"{count} % of a GPU's memory" if factor == PERCENT else format_mib(int(count * factor))


def _how_to_say(word: Word, count: int, assumed: Assumed) -> str:
    """Return the commands that say what one unit of a word is, the likely one first."""
    if word.any_number:
        shares = max(4, count)
        return f"if each GPU has {shares} shares: {assumed.command} --assume {word.name}={shares}"
    likely = sorted(word.choices, key=lambda choice: int(count * choice[1]) not in _PLAUSIBLE_MIB)
    return "; ".join(
        f"if it is {_size(count, factor)}: {assumed.command} --assume {word.name}={name}" for name, factor in likely
    )


def parse_request(
    container: Container, assumed: Assumed = NOTHING_ASSUMED, pod: PodGpus = NOTHING_SAID
) -> DeviceRequest | None:
    """Return what a container asks for; None if it asks for no GPU. `pod`: what its pod says besides.

    Raises:
        InvalidInput: a word is unknown, its amount is none, its unit is not known, or two systems' words are mixed.
    """
    words: dict[Word, object] = {}
    for name, amount in container.resources.items():
        word = find_word(name)
        if word is None and name.partition("/")[0] in DOMAINS:
            raise _unknown_word(container, name)
        if word is not None:
            words[word if word.pattern is None else word.named(name)] = amount
    if not words:
        return None
    _refuse_mixed(container, words)
    parts = _Parts(container, assumed, pod)
    for word, amount in words.items():
        parts.add(word, amount)
    parts.add_orion(next(iter(words)))
    return parts.request(tuple(words), tuple(f"{word.name} {amount}" for word, amount in words.items()))


def parse_fraction(pod: PodGpus, at: str) -> DeviceRequest | None:
    """Return what a pod's annotations ask for; None for nothing. `at`: where the pod is.

    Raises:
        InvalidInput: they say two amounts.
    """
    if pod.fraction is None and pod.fraction_mib is None:
        return None
    if pod.fraction is not None and pod.fraction_mib is not None:
        raise InvalidInput(f"{at}: gpu-fraction and gpu-memory both say how much memory", hint="keep one of them")
    is_part = pod.fraction_mib is not None or pod.fraction != 1
    text = f"gpu-memory {pod.fraction_mib}" if pod.fraction is None else f"gpu-fraction {float(pod.fraction):g}"
    return DeviceRequest(
        maker=NVIDIA,
        count=pod.fraction_count,
        at=at,
        words=(f"{text} of {count_text(pod.fraction_count, 'GPU')}",),
        memory_mib=pod.fraction_mib,
        memory_percent=pod.fraction * 100 if pod.fraction is not None and is_part else None,
        is_apart=is_part and pod.fraction_count > 1,
    )


def _unknown_word(container: Container, name: str) -> InvalidInput:
    domain = f"{name.partition('/')[0]}/"
    known = ", ".join(known.name for known in WORDS if known.name.startswith(domain))
    is_remote = "remote" in name
    remote = "; the client of a GPU over the network needs no device: give its settings by cloud_init" * is_remote
    return _error(container, f"{name} is no resource that vgpuctl knows", hint=f"it knows {known}{remote}")


def _refuse_mixed(container: Container, words: Mapping[Word, object]) -> None:
    systems = {word.system for word in words}
    plain = {word.name for word in words if word.system == PLUGIN} <= _WHOLE_DEVICES
    if len(systems) > 1 and not (plain and systems == {PLUGIN, HAMI}):
        names = ", ".join(f"{word.name} ({word.system})" for word in words)
        raise _error(container, f"words of several systems in one container: {names}", hint="keep those of one of them")
    sizes = (Amount.MEMORY, Amount.MEMORY_PERCENT, Amount.INSTANCES, Amount.SLICES)
    memory = [word.name for word in words if word.amount in sizes]
    if len(memory) > 1:
        raise _error(container, f"{' and '.join(memory)} both say how much memory", hint="keep one of them")


class _Parts:
    """The parts of a request, as the words say them one by one."""

    def __init__(self, container: Container, assumed: Assumed, pod: PodGpus) -> None:
        self._container = container
        self._assumed = assumed
        self._pod = pod
        self._count: int | None = None
        self._memory_mib: int | None = None
        self._memory_percent: Fraction | None = None
        self._cores: Fraction | None = None
        self._mig: tuple[int, int | None] | None = None
        self._model: str | None = None
        self._wholes = False
        self._left_out: list[str] = []

    def add(self, word: Word, amount: object) -> None:
        """Add one word."""
        self._model = word.model or self._model
        if word.amount is Amount.MEMORY and has_byte_suffix(amount):
            self._memory_mib = math.ceil(parse_quantity(amount) / (1 << 20))
            return
        try:
            self._add(word, parse_count(amount))
        except ValueError as error:
            raise _error(self._container, f"{word.name}: {error}") from error

    def _add(self, word: Word, count: int) -> None:
        match word.amount:
            case Amount.DEVICES:
                self._count = count
            case Amount.SHARES:
                self._add_shares(word, count)
            case Amount.MEMORY:
                self._add_memory(count, self._factor(word, count))
            case Amount.MEMORY_PERCENT:
                self._memory_percent = Fraction(count)
            case Amount.CORES:
                self._add_cores(word, Fraction(count) * Fraction(word.factor))
            case Amount.INSTANCES:
                self._add_instance(word, count)
            case Amount.SLICES:
                self._mig, self._count = (count, None), 1
            case Amount.PRIORITY:
                self._left_out.append(f"{word.name} {count}: vGPUs of one GPU have no priority over each other")

    def _add_memory(self, count: int, factor: float) -> None:
        if factor == PERCENT:
            self._memory_percent = Fraction(count)
        else:
            self._memory_mib = int(count * factor)

    def add_orion(self, word: Word) -> None:
        """Add what OrionX has in the environment: MiB of memory, and percent of the cores, of each device."""
        env = dict(self._container.env) if word.system == "OrionX" else {}
        for name in (_ORION_MEMORY, _ORION_CORES):
            if name not in env:
                continue
            try:
                number = parse_count(env[name])
            except ValueError as error:
                raise _error(self._container, f"{name}: {error}") from error
            if name == _ORION_MEMORY:
                self._memory_mib = number
            else:
                self._cores = Fraction(number)

    def request(self, words: Sequence[Word], texts: tuple[str, ...]) -> DeviceRequest | None:
        """Return the request; None for none at all. `texts`: the words with their amounts.

        Raises:
            InvalidInput: it is for too many devices, or for more than all of one.
        """
        self._add_pod(words)
        count = 1 if self._count is None else self._count
        if count > MAX_DEVICES:
            raise _error(self._container, f"it asks for {count} devices, and a VM has at most {MAX_DEVICES}")
        for what, percent in (("memory", self._memory_percent), ("cores", self._cores)):
            if percent is not None and percent > 100:
                raise _error(self._container, f"it asks for {float(percent):g} % of a GPU's {what}")
        amounts = (self._memory_mib, self._memory_percent, self._cores)
        is_whole = 100 in (self._memory_percent, self._cores) or self._wholes  # who has all of one part has the others
        if count == 0 or (self._count is None and self._mig is None and all(not amount for amount in amounts)):
            return None
        request = DeviceRequest(
            maker=words[0].maker,
            count=count,
            at=self._container.at,
            words=texts,
            memory_mib=None if is_whole else self._memory_mib or None,
            memory_percent=None if is_whole else self._memory_percent,
            cores_percent=None if is_whole else self._cores or None,
            mig_slices=None if self._mig is None else self._mig[0],
            mig_gb=None if self._mig is None else self._mig[1],
            model=self._model,
            whole_mib=(self._memory_mib or None) if is_whole else None,
            left_out=tuple(self._left_out),
        )
        is_apart = count > 1 and not request.is_whole and {word.system for word in words} - _SYSTEMS_OF_ONE_GPU
        return replace(request, is_apart=bool(is_apart))

    def _add_pod(self, words: Sequence[Word]) -> None:
        """Add what the pod says: that devices are shares or GPU instances, or over how many GPUs memory is divided."""
        gpus = self._pod.gpu_count
        if gpus is not None and gpus > 1 and words[0].system == GPUSHARE and self._memory_mib and self._count is None:
            if self._memory_mib % gpus:
                raise _error(
                    self._container,
                    f"{self._memory_mib} MiB of {count_text(gpus, 'GPU')}, as {COUNT_LABEL} has it, is no whole "
                    "number of MiB each",
                )
            self._memory_mib, self._count = self._memory_mib // gpus, gpus
        if {word.name for word in words} - _WHOLE_DEVICES or not self._count:
            return
        if self._pod.instance is not None:
            self._mig = self._pod.instance
        elif self._pod.is_shared:
            shared = find_word(_SHARED_WORD)
            if shared is not None:
                self._add_shares(shared, self._count, self._pod.shares)
                self._count = 1

    def _add_shares(self, word: Word, count: int, shares: int | None = None) -> None:
        """Add so many shares of a GPU. `shares`: of how many, where the manifest says it."""
        if shares is None and word.name not in {*self._container.resources, *self._assumed.factors}:
            raise _error(
                self._container,
                "a label of the node says that pods share each GPU, and not among how many",
                hint=_how_to_say(word, count, self._assumed),
            )
        self._memory_percent = Fraction(100 * count) / Fraction(shares or self._factor(word, count))
        self._left_out.append(f"{word.name}: a share limits no memory; the vGPU has that part of a GPU's")

    def _factor(self, word: Word, count: int) -> float:
        """Return the factor of a word, which the user has to give where its cluster decides it. `count`: of units."""
        if not word.choices and not word.any_number:
            return word.factor
        if word.name not in self._assumed.factors:
            raise _error(
                self._container,
                f"{word.name} is {_choices(word)}, as its cluster decides: the manifest does not say which",
                hint=_how_to_say(word, count, self._assumed),
            )
        return self._assumed.factors[word.name]

    def _add_cores(self, word: Word, percent: Fraction) -> None:
        if word.counts_whole and percent >= 100:
            if percent % 100:
                raise _error(
                    self._container, f"{word.name} is {float(percent):g}: from 100 on only multiples of 100 exist"
                )
            self._count, self._wholes = int(percent // 100), True
        else:
            self._cores = percent

    def _add_instance(self, word: Word, count: int) -> None:
        match = _MIG.fullmatch(word.name)
        if match is None:
            raise _error(
                self._container,
                f"{word.name} is no GPU instance of a profile such as 1g.5gb",
                hint="a part of an instance (1c.3g.20gb) has no vGPU of its own: ask for the instance",
            )
        self._mig, self._count = (int(match["slices"]), int(match["gb"])), count
        if match["media"]:
            self._left_out.append(f"{word.name}: {match['media'][1:]} is not distinguished")


def _error(container: Container, text: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput(f"{container.at}: container {container.name[:63]!a}: {text}", hint=hint)
