"""`loaderbench tune`: the best loader, decoder, workers and prefetch for a data set and a device, in a stated time.

Successive halving (Jamieson & Talwalkar 2016, "Non-stochastic best arm identification"): in each rung all that are
left are measured in turn for as long, in an order drawn anew, and the faster half goes on. The last few and the
default then take turns as runs of their own, which are stored; their intervals are the answer.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loaderbench.analysis.advice import flags
from loaderbench.analysis.comparison import rate_of, ratio_of
from loaderbench.analysis.record import ALL_ARMS
from loaderbench.analysis.steps import arm_steps
from loaderbench.cases.case import Case
from loaderbench.cases.study import SCALING_DECODERS
from loaderbench.errors import CaseFailed
from loaderbench.prefixes import prefix_of
from loaderbench.recording.store import Store
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.measure import Record, measure_case

SEARCH_FRACTION = 0.6
"""Of the budget goes to the rungs, the rest to the finals."""
MIN_TRIAL_S = 2.0
"""Of measuring in the first rung; a rung that is half as wide measures twice as long."""
NUM_FINALISTS = 2
FINAL_ROUNDS = 3
"""Student's t over two rounds is 12.7 standard errors wide; over three 4.3."""
TRIAL_START_S = 2.5
"""Of a trial besides its measuring: starting the workers, warming up."""
START_S = 8.0
"""Of a stored run besides its measuring: importing torch, building, ending."""
CHANGED = ("loader", "decoder", "output", "workers", "prefetch")

Say = Callable[[str], None]


@dataclass
class Trial:
    """One setting and what it gave in each rung that it was in."""

    case: Case
    rates: list[float] = field(default_factory=list)
    """Samples/s."""
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        changed = {name: getattr(self.case, name) for name in CHANGED}
        return {**changed, "rates": self.rates, "failure": self.failure}


def tune(cases: Sequence[Case], default: Case, budget_s: float, store: Store, say: Say) -> dict[str, Any]:
    """Search `cases` for the fastest within about `budget_s` seconds, the finals included.

    Returns {winner, flags, rate, over_default, over_second (ratios with intervals, None where there is none), trials[],
    finalists[], budget_s, spent_s, num_rungs}. `say` gets a line for each measurement.

    Raises:
        CaseFailed: no setting could be measured, or the results cannot be written.
    """
    begun = time.monotonic()
    tried = _that_fit(cases, SEARCH_FRACTION * budget_s, default.seed)
    if len(tried) < len(cases):
        say(f"{len(tried)} of {len(cases)} settings fit into {budget_s:.0f} s; a larger --budget tries more")
    trials, num_rungs = _search([Trial(one) for one in tried], SEARCH_FRACTION * budget_s, default.seed, say)
    ranked = sorted((one for one in trials if one.rates), key=lambda one: (-len(one.rates), -one.rates[-1]))
    if not ranked:
        raise CaseFailed(f"no setting could be measured: {trials[0].failure}")
    chosen = [one.case for one in ranked[:NUM_FINALISTS]]
    finalists = [*chosen, *([default] if default.key not in {one.key for one in chosen} else [])]
    left_s = budget_s - (time.monotonic() - begun)
    each_s = max(4.0, left_s / (FINAL_ROUNDS * len(finalists)) - START_S)
    runs: dict[str, list[Record | None]] = {one.key: [] for one in finalists}
    for number in range(FINAL_ROUNDS):
        for one in random.Random(f"{default.seed} {number}").sample(finalists, len(finalists)):
            say(f"final, round {number + 1} of {FINAL_ROUNDS}: {describe(one)}")
            timed = replace(one, repeat=number, duration_s=each_s)
            runs[one.key].append(measure_case(timed, store, lambda case, kind, payload: None))
    measured = [(one, rate) for one in finalists if (rate := rate_of(runs[one.key])) is not None]
    if not measured:
        raise CaseFailed("the finalists could not be measured; see `loaderbench list`")
    measured.sort(key=lambda pair: -pair[1]["value"])
    winner, rate = measured[0]
    second = measured[1][0] if len(measured) > 1 else None

    def over(other: Case | None) -> dict[str, Any] | None:
        if other is None or other.key == winner.key:
            return None
        return ratio_of(runs[other.key], runs[winner.key])

    return {
        "winner": winner.to_json(),
        "flags": flags({name: getattr(winner, name) for name in CHANGED if getattr(winner, name) is not None}),
        "rate": rate,
        "over_default": over(default),
        "over_second": over(second),
        "num_settings": len(cases),
        "trials": [one.to_json() for one in trials],
        "finalists": [
            {
                **{name: getattr(one, name) for name in CHANGED},
                "rate": rate_of(runs[one.key]),
                "run_ids": [run["run_id"] for run in runs[one.key] if run is not None],
                "is_default": one.key == default.key,
            }
            for one in finalists
        ],
        "num_rungs": num_rungs,
        "budget_s": budget_s,
        "spent_s": time.monotonic() - begun,
    }


def describe(case: Case) -> str:
    """The settings that are searched, in short."""
    decoder = f"+{case.decoder}" if case.decoder else ""
    return f"{case.loader}{decoder} {case.output} workers={case.workers} prefetch={case.prefetch}"


def _that_fit(cases: Sequence[Case], budget_s: float, seed: int) -> list[Case]:
    """As many of the cases as rungs of the budget hold, drawn by the seed, each loader and decoder as often."""
    drawn = random.Random(seed).sample(list(cases), len(cases))
    places: dict[tuple[str, str | None], int] = {}
    order = []
    for one in drawn:
        kind = (one.loader, one.decoder)
        order.append(places.setdefault(kind, 0))
        places[kind] += 1
    fair = [one for _, one in sorted(zip(order, drawn, strict=True), key=lambda pair: pair[0])]
    num = len(fair)
    while num > NUM_FINALISTS and _search_s(num) > budget_s:
        num -= 1
    return fair[:num]


def _search_s(num: int) -> float:
    """What the rungs over so many cases take."""
    seconds, rung = 0.0, 0
    while num > NUM_FINALISTS or rung == 0:
        seconds += num * (MIN_TRIAL_S * 2**rung + TRIAL_START_S)
        num, rung = max(NUM_FINALISTS, math.ceil(num / 2)), rung + 1
    return seconds


def _search(trials: list[Trial], budget_s: float, seed: int, say: Say) -> tuple[list[Trial], int]:
    """All trials, with what each rung measured of them; and the number of rungs that were finished."""
    deadline = time.monotonic() + budget_s
    left, rung = list(trials), 0
    with tempfile.TemporaryDirectory(prefix="loaderbench-tune-") as folder:
        log = Path(folder, "worker.log")
        while len(left) > NUM_FINALISTS or rung == 0:
            trial_s = MIN_TRIAL_S * 2**rung
            if not _rung(
                random.Random(f"{seed} rung {rung}").sample(left, len(left)), rung, trial_s, deadline, log, say
            ):
                break  # out of time within the rung: the one before decides
            rung += 1
            alive = sorted((one for one in left if one.failure is None), key=lambda one: -one.rates[-1])
            left = alive[: max(NUM_FINALISTS, math.ceil(len(alive) / 2))]
            if len(alive) <= NUM_FINALISTS:
                break
    if rung:
        for one in trials:  # an unfinished rung compares nothing
            del one.rates[rung:]
    return trials, rung


def _rung(trials: Sequence[Trial], rung: int, trial_s: float, deadline: float, log: Path, say: Say) -> bool:
    """Measure each trial once, in a process kept while one can. False where the time was over before all were."""
    waiting = list(trials)
    while waiting:
        prefix = prefix_of(waiting[0].case.decoder)
        with Child(log, prefix) as child:
            while waiting and prefix_of(waiting[0].case.decoder) == prefix:
                if time.monotonic() + trial_s > deadline:
                    return False
                one = waiting.pop(0)
                case = replace(one.case, arms=("real",), duration_s=trial_s, steps=None, warmup=None, ci_target=0.01)
                try:
                    recording = child.ask("measure", case, lambda kind, payload: None)
                except JobFailed as error:
                    one.failure = error.message
                    say(f"rung {rung + 1}: {describe(one.case)}: {error.message}")
                    break  # the process may be gone with it: begin a new one
                steps = arm_steps(recording.segments, "real", ALL_ARMS.index("real"), case.lanes)
                if steps is None:
                    one.failure = "no complete step in the time of a trial"
                    continue
                one.rates.append(steps.num_samples / steps.num_steps / steps.mean("duration"))
                say(f"rung {rung + 1}, {len(trials) - len(waiting)} of {len(trials)}: {describe(one.case)}: "
                    f"{one.rates[-1]:,.0f} images/s")  # fmt: skip
    return True


def snippet(case: Case) -> str:
    """Python that uses the setting in a training script. Runs as it is."""
    size = case.input_size or 224
    flat = not any(entry.is_dir() for entry in Path(case.dataset).iterdir())
    plain = case.loader in ("serial", "multiprocess") and case.decoder not in SCALING_DECODERS
    if flat or not plain:  # torchvision's ImageFolder wants a folder for each class
        return f"""\
from loaderbench import plugins
from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext

context = LoaderContext(
    images=index_images({case.dataset!r}), batch_size={case.batch_size}, workers={case.workers},
    prefetch={case.prefetch}, decoder={case.decoder!r}, input_size={case.input_size}, mode={case.mode!r},
    output={case.output!r}, seed={case.seed}, device={case.device!r}, pin_memory={case.device.startswith("cuda")},
)
module = plugins.load("loaders", {case.loader!r})
loader = module.build(plugins.parse_options(module, {dict(case.loader_options)!r}), context)
for batch in loader.batches(num_epochs=1):
    inputs, targets = batch.inputs, batch.targets
loader.close()
"""
    decoders = {
        "turbojpeg": "import simplejpeg\n\n\ndef decode(path):\n    with open(path, 'rb') as file:\n"
        "        return torch.from_numpy(simplejpeg.decode_jpeg(file.read())).permute(2, 0, 1)\n",
        "torchvision": "\n\ndef decode(path):\n    return torchvision.io.decode_image(path, mode='RGB')\n",
        "opencv": "import cv2\n\ncv2.setNumThreads(0)\n\n\ndef decode(path):\n"
        "    return torch.from_numpy(cv2.imread(path, cv2.IMREAD_COLOR_RGB)).permute(2, 0, 1)\n",
        "pillow-simd": f"\n# in a process that has pillow-simd: PYTHONPATH={prefix_of('pillow-simd')}\n"
        "decode = torchvision.datasets.folder.default_loader\n",
    }
    decode = decoders.get(case.decoder or "", "\ndecode = torchvision.datasets.folder.default_loader\n")
    spatial = (
        f"v2.RandomResizedCrop({size}, antialias=True), v2.RandomHorizontalFlip()"
        if case.mode == "train"
        else f"v2.Resize({round(size * 256 / 224)}, antialias=True), v2.CenterCrop({size})"
    )
    kind = (
        "v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"
        if case.output == "float32"
        else "v2.ToDtype(torch.uint8)"
    )
    workers = (
        f"num_workers={case.workers}, prefetch_factor={case.prefetch}, persistent_workers=True, "
        if case.workers
        else "num_workers=0, "
    )
    return f"""\
import torch
import torchvision
from torchvision.transforms import v2
{decode}

transform = v2.Compose([v2.ToImage(), {spatial}, {kind}])
dataset = torchvision.datasets.ImageFolder({case.dataset!r}, transform=transform, loader=decode)
loader = torch.utils.data.DataLoader(
    dataset, batch_size={case.batch_size}, shuffle=True, {workers}pin_memory={case.device.startswith("cuda")}
)
"""
