"""What the self-test runs: the cases of its quick and of its full set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench import plugins
from loaderbench.cases.traits import LoaderTraits, Work

if TYPE_CHECKING:
    from loaderbench.recording.studies import HardClass, InjectedCause

BUILT_IN: tuple[InjectedCause, ...] = ("storage", "prep", "transfer", "launch", "compute", "mixed")
"""Causes of constant size, one at a time or two together."""
QUICK_CAUSES: Mapping[Work, tuple[InjectedCause, ...]] = {
    "processes": ("prep", "storage", "transfer", "launch", "mixed", "compute"),
    "in line": ("prep", "storage", "transfer"),
    "threads": ("prep", "storage", "launch"),
}
"""Causes that the quick set builds into a loader, by where its batches are made."""
OWN_DECODER_CAUSES: tuple[InjectedCause, ...] = ("prep", "transfer", "launch", "compute")
"""Causes that the full set builds into a loader that decodes for itself."""
NULLS, QUICK_NULLS = 10, 2
"""Runs without a cause for each loader: full set, quick set."""
MAGNITUDES = (1.4, 2.0, 3.0)
"""Step time with the cause ÷ step time of the device alone."""
WARM_MAGNITUDE = 2.0
"""Of the cases in which the files are in memory and only their opens are slow."""
ALIKE_SIZES, QUICK_ALIKE_SIZES = (256, 512, 1024), (512,)
"""Of images, where the arms of a loader are compared."""
DEVICE_TO_LOADER = 2.0
"""Least device time ÷ loader time, so that a run without a cause is bound by compute."""


@dataclass(frozen=True)
class Scenario:
    """One case of the self-test: what is built into the run, and what of it stays in the runs for truth."""

    name: str
    loader: str
    cause: InjectedCause
    magnitude: float
    bed: str | None = None
    """What the machine must be able to make: slow_fuse, throttled_loop (root's), or quota (a writable cgroup)."""
    hard: HardClass | None = None
    """None: what slows the run is the same at all times and its own."""
    warm: bool = False
    """The files are in memory."""
    device_to_loader: float = DEVICE_TO_LOADER


@dataclass(frozen=True)
class Hard:
    """How one class is built in. `magnitudes`: docs/validation.md says what they are."""

    cause: InjectedCause
    magnitudes: tuple[float, ...]
    work: tuple[Work, ...] = ("processes", "threads")
    bed: str | None = None
    warm: bool = False
    device_to_loader: float = DEVICE_TO_LOADER
    quick: bool = False
    """Whether the quick set has it: its first magnitude, in the loader whose workers are processes."""


HARD: Mapping[HardClass, Hard] = {
    "tails": Hard("storage", (1.6, 2.5), bed="slow_fuse", quick=True),
    "stalls": Hard("storage", (1.6, 2.4), bed="slow_fuse"),
    "opens": Hard(
        "storage", (WARM_MAGNITUDE,), ("processes", "threads", "in line"), "slow_fuse", warm=True, quick=True
    ),
    # Processors must be scarce for it to matter who else has them: the loader gets less slack. With 1.4 there were
    # machines on which neighbours took less than a tenth.
    "neighbours": Hard("contention", (1.0, 2.0), warm=True, device_to_loader=1.2, quick=True),
    "quota": Hard("contention", (1.6, 2.4), bed="quota", warm=True, device_to_loader=1.4),
    "own threads": Hard("contention", (2.0, 1.6), warm=True, quick=True),
    # Each alone must leave the device its time, the loader's own decoding included: more slack, 1.6 ÷ 2 + 1 ÷ 6 < 1.
    "either-or": Hard("either", (1.4, 1.6), bed="slow_fuse", warm=True, device_to_loader=6.0),
    "warm FUSE": Hard("prep", (1.4, 2.0), ("processes", "threads", "in line"), "slow_fuse", warm=True),
}


def scenarios(*, quick: bool) -> list[Scenario]:
    """The quick set, or the full one: six classes × three magnitudes × three loaders, the hard classes, DALI, and
    nulls.

    Its storage cases come twice: on FUSE, and (as root) on a disk throttled in the block layer. One null in ten is on
    FUSE.
    """
    tested = {name: traits for name, traits in plugins.LOADERS.known().items() if traits.self_tested}
    made: list[Scenario] = []
    for name, traits in tested.items():
        if quick and traits.decodes != "ours":
            continue
        causes = QUICK_CAUSES[traits.work] if quick else BUILT_IN if traits.decodes == "ours" else OWN_DECODER_CAUSES
        sizes = (2.0,) if quick else MAGNITUDES
        cases = [_scenario(name, cause, magnitude) for cause in causes for magnitude in sizes]
        if not quick:
            cases += [replace(one, name=f"{one.name}@disk", bed="throttled_loop") for one in cases if one.bed]
        nulls = range(QUICK_NULLS if quick else NULLS)
        made += [*cases, *_hard(name, traits, quick=quick), *(_scenario(name, "none", 1.0, number) for number in nulls)]
        if not quick and traits.decodes == "ours":
            made[-1] = replace(made[-1], bed="slow_fuse", hard="warm FUSE", warm=True)
    return made


def _scenario(loader: str, cause: InjectedCause, magnitude: float, number: int | None = None) -> Scenario:
    suffix = f"#{number}" if number is not None else f"x{magnitude:g}"
    return Scenario(f"{loader}-{cause}-{suffix}", loader, cause, magnitude, "slow_fuse" if cause == "storage" else None)


def _hard(loader: str, traits: LoaderTraits, *, quick: bool) -> Iterator[Scenario]:
    if traits.decodes != "ours":
        return
    for name, one in HARD.items():
        if traits.work not in one.work or (quick and not (one.quick and traits.work == "processes")):
            continue
        for magnitude in one.magnitudes[: 1 if quick else None]:
            label = f"{loader}-{one.cause}-x{magnitude:g}@{name.replace(' ', '-')}"
            yield Scenario(label, loader, one.cause, magnitude, one.bed, name, one.warm, one.device_to_loader)


@dataclass(frozen=True)
class Combination:
    """A loader with a decoder, on images of one size."""

    loader: str
    decoder: str
    resolution: int

    @property
    def name(self) -> str:
        return f"alike-{self.loader}-{self.decoder}-{self.resolution}"


def combinations(*, quick: bool) -> Iterator[Combination]:
    """Yield every self-tested loader that decodes with our decoders × decoder × size; the quick set has the default
    loader and decoder alone."""
    for loader, traits in plugins.LOADERS.known().items():
        if not traits.self_tested or traits.decodes != "ours":
            continue
        own = plugins.loader_choice(loader).decoder
        for decoder in plugins.DECODERS.known():
            is_default = loader == plugins.DEFAULT_LOADER and own is not None and decoder == own.name
            for size in (QUICK_ALIKE_SIZES if is_default else ()) if quick else ALIKE_SIZES:
                yield Combination(loader, decoder, size)
