"""A loader alone, for a moment: images/s without a device and without a model, and what its decoder's scaling does to
pixels."""

from __future__ import annotations

import time
from contextlib import ExitStack

from loaderbench import plugins
from loaderbench.devices.select import nvml_ordinal
from loaderbench.images.shards import open_data_set
from loaderbench.loaders.base import Loader
from loaderbench.recording.facts import ScaleProbe
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.jobs.table import ScalesRequest, ScreenRequest
from loaderbench.running.prep_probe import compare_scales
from loaderbench.running.rig import loader_context
from loaderbench.running.streams import close


def screen(request: ScreenRequest, report: Report) -> float:
    """Images/s that the case's loader delivers where nothing but the next batch is waited for.

    The first batch of each worker is left out: it pays for the start. The queue is empty from then on.
    """
    case = request.case
    report(Phase("starting the loader"))
    with ExitStack() as stack:
        module = plugins.LOADERS.load(case.feed.loader)
        data = open_data_set(case.subject.dataset, plugins.LOADERS.find(case.feed.loader).traits.format)
        plugins.check_formats(case.feed, data.images.formats, case.subject.dataset)
        context = loader_context(case, data, gpu=nvml_ordinal(case.step.device))
        loader: Loader = module.build(plugins.parse_options(module, case.feed.loader_options), context)
        stack.callback(loader.close)
        batches = loader.batches()
        stack.callback(close, batches)
        for _ in range(case.feed.lanes):
            next(batches)
        begun, num_batches, num_samples = time.perf_counter(), 0, 0
        while (seconds := time.perf_counter() - begun) < request.seconds or num_batches < case.feed.lanes:
            num_samples += next(batches).num_samples
            num_batches += 1
        return num_samples / seconds if num_batches else 0.0


def compare_decode_scales(request: ScalesRequest, report: Report) -> ScaleProbe:
    """The case's samples by its decoder, with `--decode-scale auto` and without."""
    report(Phase("comparing pixels"))
    data = open_data_set(request.case.subject.dataset, None)
    return compare_scales(loader_context(request.case, data, gpu=None))
