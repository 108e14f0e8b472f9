"""`loaderbench whatif`: what a stored run would take if something were another one. The prediction is kept, so that a
later run of exactly that scores it (`loaderbench ledger`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from loaderbench.analysis.whatif import predict, samples_per_step, whatif_of
from loaderbench.cases.options import RESULTS, Price, WhatifOptions, group, read
from loaderbench.cases.study import check_whatif
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Run
from loaderbench.recording.kinds import with_facts
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.recording.store import RECORD_FILE, Store, StoredStudy, load_stored
from loaderbench.recording.whatif import Whatif, WhatifFacts
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.measure import judged
from loaderbench.studies.whatif_plan import planned


def whatif(
    run: Run | str | os.PathLike[str], *, results: str | os.PathLike[str] = RESULTS,
    price: Price | str | float | None = None, **options: object,
) -> Whatif:  # fmt: skip
    """What a stored run would take if something were another one: `loaderbench whatif` for Python. Kept in `results`.

    Args:
        run: a run from `load_run`; or its id in `results`, a unique prefix of it, its folder, or `latest`.
        price: what the machine costs an hour, to say what the change saves: "2.50/h".
        options: workers, prefetch, decoder, device, storage, ranks, as on the command line.

    Raises:
        ConfigError: there is no such run, it does not tell enough for that, or an option is wrong.
        TypeError: there is no such option.
    """
    if unknown := set(options) - set(WhatifOptions.__dataclass_fields__):
        raise TypeError(f"whatif() has no option '{sorted(unknown)[0]}'")
    asked, store, cost = group(WhatifOptions, options), Store(results), read("price", Price | None, price)
    check_whatif(asked)
    if isinstance(run, Run):
        facts = predicted(run, judged(run), asked, store, cost)
    else:
        facts = predicted_of(str(run), asked, store, cost)
    study = WhatifStudy(facts, store)
    study.run(lambda line, stays: None)
    return with_facts(whatif_of(facts), facts)


def predicted_of(name: str, options: WhatifOptions, store: Store, price: Price | None = None) -> WhatifFacts:
    """The prediction for a stored run. Raises ConfigError as `whatif`."""
    check_whatif(options)
    folder = Path(name)
    is_here = os.sep not in name and (folder / RECORD_FILE).is_file() and not (store.root / folder).exists()
    stored = store.named(str(folder.absolute()) if is_here else name)
    if isinstance(stored, StoredStudy):
        facts = None if stored.study is None else stored.study.facts
        if isinstance(facts, WhatifFacts):
            raise ConfigError(f"{stored.study_id} is a what-if: name the run that it is about, {facts.source_id}")
        stored = store.find(name)  # says which runs the study has
    if stored.record is None:
        raise ConfigError(f"{stored.run_id} has no result: {stored.problem}")
    return predicted(load_stored(stored), stored.record, options, store, price)


def predicted(
    run: Run, record: RunRecord, options: WhatifOptions, store: Store, price: Price | None = None
) -> WhatifFacts:
    """The prediction for a run and its record. Raises ConfigError as `whatif`."""
    plan = planned(run, options, store)
    samples, rate = samples_per_step(plan.fitted), record.throughput
    rate = None if rate is None or not rate.value > 0 else rate
    now_s = plan.fitted.real.measured_s if rate is None else samples / rate.value
    found = predict(plan.fitted, plan.change, options.ranks, now_s, loader_changes=plan.loader_changes)
    return WhatifFacts(
        source_id=run.run_id,
        case=run.case,
        environment=run.environment,
        asked=plan.asked,
        samples_per_step=samples,
        now_s=found.now_s if rate is None else _step_of(rate, samples),
        then_s=found.then_s,
        gain=found.gain,
        limit=found.limit,
        residual=found.residual,
        held_out=found.held_out,
        assumed=tuple(plan.assumed),
        ranks=found.ranks,
        wanted=plan.wanted,
        missing=plan.missing,
        price=price,
    )


def _step_of(rate: Estimate, samples: float) -> Estimate:
    """Seconds a step at that rate, as the run's own record has it."""
    low, high = (None if end is None or not end > 0 else samples / end for end in (rate.high, rate.low))
    low, high = (low, high) if low is not None and high is not None else (None, None)
    return replace(rate, value=samples / rate.value, low=low, high=high, unit="s")


class WhatifStudy(KeptStudy):
    """One prediction."""

    def __init__(self, facts: WhatifFacts, store: Store) -> None:
        given = [f"{name}-{value}" for name, value in vars(facts.asked).items() if value is not None]
        super().__init__(store.new_study("whatif", given))
        self._facts = facts

    def facts(self) -> WhatifFacts:
        """The prediction."""
        return self._facts

    @property
    def kept(self) -> str:
        """What an interruption leaves."""
        return "the prediction is kept"

    def run(self, say: Say) -> None:
        """Store it. Raises CaseFailed where it cannot be written."""
        self.store()
