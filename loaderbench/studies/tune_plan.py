"""What `loaderbench tune` asks for, read into its settings."""

from __future__ import annotations

from loaderbench import plugins
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import DIRECT, SAMPLES, SCALED, Case
from loaderbench.cases.study import StudyOptions, check_seconds
from loaderbench.devices.select import is_gpu
from loaderbench.machine import usable_cpus
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import (
    Folder,
    Progress,
    Say,
    find_data_sets,
    first_formats,
)

MIN_BUDGET_S = 60.0


def check_tuning(options: StudyOptions, budget_s: float) -> None:
    """Raises ConfigError for a budget that is too short, and for a list where one value is taken."""
    check_seconds("--budget", budget_s, MIN_BUDGET_S)
    options.require_single("tune", "res", "model", "precision", "batch_size")


def plan_tuning(
    options: StudyOptions, dataset: Folder | None, *, on_note: Say, progress: Progress
) -> tuple[list[Case], Case]:
    """(the settings to search, the default with which the winner is compared).

    Defaults: all installed loaders and decoders, and as many workers as half, all and twice the CPUs.

    Raises:
        ConfigError: a value out of range, or a contradiction.
    """
    cpus = usable_cpus()
    subjects = find_data_sets(dataset, options, progress=progress)
    formats = first_formats(one.dataset for one in subjects)
    usable = plugins.installed_loaders(with_gpu=is_gpu(options.device))
    reading = [one for one in usable if one.decoder is not None or formats <= set(one.traits.formats)]
    loaders = options.loader or [choice.name for choice in reading]
    decoders = options.decoder
    if decoders is None and any(plugins.LOADERS.find(name).traits.decodes == "ours" for name in loaders):
        decoders = [choice.name for choice in plugins.installed_decoders(formats)]
    options = options.changed(
        loader=loaders, decoder=decoders, workers=options.workers or sorted({max(1, cpus // 2), cpus, 2 * cpus}),
        arms=Arm.REAL.value, kernels=False, duration=10.0, ci_target=0.01,
    )  # fmt: skip
    cases = planned(options, subjects, on_note=on_note)
    if options.cache is None and cases[0].subject.cache == "as-is":  # the first to read a file would pay for the others
        cases = [case.changed(cache="warm") for case in cases]
    cases += [case for one in cases for case in _other_ways(one, scaled=options.decode_scale is None)]
    usual = plugins.loader_choice(plugins.DEFAULT_LOADER)
    default = cases[0].changed(
        loader=usual.name, decoder=None if usual.decoder is None else usual.decoder.name, workers=cpus, prefetch=2,
        output=options.output or usual.traits.output, decode_scale=None, loader_options={}, decoder_options={},
    )  # fmt: skip
    return cases, default


def _other_ways(case: Case, *, scaled: bool) -> list[Case]:
    """The case with samples straight into their batch, where its loader makes them as torchvision's users do; and,
    if `scaled`, with large crops decoded smaller, where its decoder can and the pictures are not known to be too small.
    """
    subject, feed, size = case.subject, case.feed, case.step.input_size
    decoder = None if feed.decoder is None else plugins.DECODERS.find(feed.decoder).traits
    found = []
    if decoder is not None and decoder.gives_pil and plugins.LOADERS.find(feed.loader).traits.as_torchvision:
        found.append(case.changed(loader_options={**feed.loader_options, SAMPLES: DIRECT}))
    large = size is not None and (subject.resolution is None or subject.resolution >= 2 * size)
    if scaled and large and decoder is not None and decoder.scales:
        found.append(case.changed(decode_scale=SCALED))
    return found


def describe(case: Case) -> str:
    """The settings that are searched, in short."""
    feed = case.feed
    decoder = f"+{feed.decoder}" if feed.decoder else ""
    ways = [f"decode-scale={SCALED}"] if feed.decode_scale == SCALED else []
    ways += [f"{key}={value}" for key, value in feed.loader_options.items()]
    return " ".join(
        [f"{feed.loader}{decoder} {feed.output} workers={feed.workers} prefetch={feed.prefetch}", *ways]
    )  # fmt: skip
