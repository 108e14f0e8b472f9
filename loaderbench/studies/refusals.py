"""What can be told of planned cases before a process imports PyTorch for them."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench import plugins
from loaderbench.cases.case import Case, Subject
from loaderbench.cases.study import StudyOptions
from loaderbench.cases.traits import Needs
from loaderbench.devices.select import is_gpu, lacks, num_visible_gpus, traits_of
from loaderbench.errors import ConfigError
from loaderbench.machine import memory_limit_bytes
from loaderbench.printable import memory_sizes
from loaderbench.studies.request import Say, no_note, plan


def planned(
    options: StudyOptions, subjects: Sequence[Subject], *, on_note: Say = no_note, cpus: int | None = None
) -> list[Case]:
    """All cases of a study, as `plan` gives them, checked by `check_cases`.

    Raises:
        ConfigError: as `plan` and `check_cases`.
    """
    cases = plan(options, subjects, on_note=on_note, cpus=cpus)
    check_cases(cases)
    return cases


def check_cases(cases: Sequence[Case]) -> None:
    """Raises ConfigError for an unknown model or option of a plug-in, for batches that memory cannot hold, and if this
    machine can run none of the cases. If it can run some, the others are skipped with the reason."""
    for loader in {case.feed.loader for case in cases if case.subject.cache == "cold"}:
        if not plugins.LOADERS.find(loader).traits.can_be_cold:
            raise ConfigError(
                f"--cache cold cannot be kept or proven with the loader {loader}: use --cache as-is or warm"
            )
    for case in {(one.feed.loader, one.feed.decoder, one.step.model, one.step.device): one for one in cases}.values():
        feed = case.feed
        plugins.check_options(plugins.LOADERS, feed.loader, feed.loader_options)
        if feed.decoder is not None:
            plugins.check_options(plugins.DECODERS, feed.decoder, feed.decoder_options)
        elif feed.decoder_options:
            raise ConfigError(
                f"--decoder-option: --loader {feed.loader} does not use a decoder of loaderbench: leave it out"
            )
        plugins.check_model(case.step, traits_of(case.step.device))
    for case in cases:
        _check_memory(case)
    reasons = [why_not_here(case) for case in cases]
    if cases and all(reasons):
        raise ConfigError(str(reasons[0]))


def _check_memory(case: Case) -> None:
    """Raises ConfigError if the batches of one worker's buffer do not fit into the machine's memory."""
    step, memory = case.step, memory_limit_bytes()[0]
    side = step.input_size or case.subject.resolution
    if memory is None or side is None:
        return
    needed = case.feed.prefetch * step.batch_size * step.channels * side**2
    if needed > memory:
        least, there = memory_sizes(needed, memory)
        buffered = f" of {case.feed.prefetch:,} batches" if case.feed.prefetch > 1 else ""
        raise ConfigError(
            f"a buffer{buffered} of {step.batch_size:,} images of {side:,}×{side:,} takes {least} or more, and this "
            f"machine has {there}: give a smaller --batch-size, --prefetch or --input-size"
        )


def why_not_here(case: Case) -> str | None:
    """What this machine lacks for the case, and what to do, as far as that is known without trying; else None."""
    feed, step = case.feed, case.step
    loader = plugins.LOADERS.find(feed.loader).traits
    if (why := _not_installed(f"--loader {feed.loader}", loader.needs)) is not None:
        return why
    if feed.decoder is not None:
        needs = plugins.DECODERS.find(feed.decoder).traits.needs
        if (why := _not_installed(f"--decoder {feed.decoder}", needs)) is not None:
            return why
    if loader.needs_gpu and not is_gpu(step.device):
        use = "give --device cuda" if num_visible_gpus() else f"use --loader {plugins.DEFAULT_LOADER}"
        return f"--loader {feed.loader} decodes on a GPU, and {step.device} is not a GPU: {use}"
    return lacks(step.device, step.precision)


def _not_installed(option: str, needs: Needs) -> str | None:
    reason = plugins.missing(needs)
    if reason is None:
        return None
    install = "" if needs.install is None or needs.install in reason else f": {needs.install}"
    return f"{option} cannot be used here: {reason}{install}"
