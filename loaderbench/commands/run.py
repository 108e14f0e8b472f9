"""`loaderbench run`: one case, and what limits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loaderbench.cases.options import EffortOptions, FeedOptions, Options, StepOptions, SubjectOptions
from loaderbench.commands.measuring import measure
from loaderbench.commands.options import Dataset, OutputOptions, one_of_each, with_options

DEFAULT_RESOLUTION = 256


@with_options(without=("buffer_ratio",))
def run(
    *,
    dataset: Dataset = None,
    subject: SubjectOptions,
    feed: FeedOptions,
    step: StepOptions,
    effort: EffortOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases and the time they will take")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Then run the advice, and print predicted against measured speed-up")
    ] = False,
    save_profile: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Keep this GPU's times for --device emulated:FILE.toml")
    ] = None,
    output: OutputOptions,
) -> None:
    """Measure one case and say what limits it."""
    one_of_each(
        "run", res=subject.res, loader=feed.loader, workers=feed.workers, decoder=feed.decoder, model=step.model,
        precision=step.precision, batch_size=step.batch_size, prefetch=feed.prefetch,
    )  # fmt: skip
    resolution = subject.res[0] if subject.res else DEFAULT_RESOLUTION if dataset is None else None
    measure(
        Options(subject, feed, step, effort), [(dataset, resolution)], output, dry_run=dry_run, verify=verify,
        save_profile=save_profile,
    )  # fmt: skip
