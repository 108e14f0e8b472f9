"""New cases: of a self-test's runs, or of one run and a file with its truth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from loaderbench import plain
from loaderbench.analysis.record import analyze
from loaderbench.analysis.selftest import outcome_of
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Run
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, load_run
from loaderbench.recording.studies import ScenarioFacts, SelfTestFacts
from tests.corpus.packed import WITH, Packed, Truth, names_of_sets, pack, read_set, write_set

TRUTH_FILE = "truth.json"
"""In the folder of a run whose truth is known; benchmarks write it (`--results`)."""


def of_self_test(folder: Path, beside: str) -> Iterator[Packed]:
    """The cases of a self-test in a store, that have turns of the stopwatch."""
    store = Store(str(folder.parent))
    found = next((one.study for one in store.studies() if one.study_id == folder.name), None)
    if found is None or not isinstance(found.facts, SelfTestFacts):
        raise ConfigError(f"{folder} is no self-test")
    runs = store.open_study(found).runs
    for scenario in found.facts.scenarios:
        if scenario.stopwatch.turns:
            run = load_run(Path(runs.root, scenario.run_id))
            yield checked(scenario.name, _truth_of(scenario, run, beside), run)


def of_store(folder: Path, beside: str) -> Iterator[Packed]:
    """The runs of a store that have their truth beside them."""
    found = sorted(folder.glob(f"*/{TRUTH_FILE}"))
    if not found:
        raise ConfigError(f"no run in {folder} has its truth beside it, in a file {TRUTH_FILE}")
    for truth in found:
        yield of_run(truth.parent, truth, beside)


def of_run(folder: Path, truth: Path, beside: str) -> Packed:
    """A run and its truth, a JSON object: `name`, `cause`, `turns`, `without`, `built_in`, and what else Truth has."""
    run, told = load_run(folder), json.loads(truth.read_text())
    name = str(told.pop("name"))
    return checked(name, plain.from_json(Truth, {"machine": machine_of(run), "beside": beside, **told}), run)


def machine_of(run: Run) -> str:
    """What the run was measured on, without a name of its own."""
    there = run.environment
    return "unknown" if there is None else f"{there.cpu_model}, {there.cpus_usable} CPUs"


def _truth_of(scenario: ScenarioFacts, run: Run, beside: str) -> Truth:
    """What a self-test's stopwatch showed, and which of its sides is the run without the true cause."""
    outcome, watch = outcome_of(scenario, analyze(run)), scenario.stopwatch
    others = [name for name in watch.turns if name != WITH]
    away: Mapping[str, float] = {
        name: abs(watch.with_s / getattr(watch, name) - outcome.true_speedup) for name in others
    }
    cause = scenario.cause if outcome.truth == "compute" else outcome.truth
    return Truth(
        cause=cause,
        turns=watch.turns,
        without=min(others, key=lambda name: away[name]),
        built_in={**scenario.injected, "bed": scenario.bed, "hard": scenario.hard, "magnitude": scenario.magnitude},
        machine=machine_of(run),
        beside=beside,
        kind=outcome.detail_true if cause == "storage" else None,
        culprit=outcome.detail_true if cause == "contention" else None,
        also=outcome.also,
        best_alone=outcome.best_alone,
    )


def checked(name: str, truth: Truth, run: Run) -> Packed:
    """The case, packed. Raises ConfigError where the packed facts are judged in another way than the run itself."""
    case = pack(name, truth, run)
    _, again = case.opened()
    whole, thin = (_said(analyze(one)) for one in (run, again))
    if whole != thin:
        raise ConfigError(f"{name}: thinned, it is judged in another way: {whole} became {thin}")
    return case


def _said(record: RunRecord) -> object:
    verdict = record.verdict
    if verdict is None:
        return None
    gains = {name: None if gain is None else gain.value for name, gain in verdict.speedup_if_removed.items()}
    return verdict.bottleneck, gains, getattr(record.storage, "kind", None), record.contention


def add(set_name: str, cases: Iterator[Packed]) -> list[str]:
    """Add cases to a set; one of the same name is replaced. Returns what was done, a line each."""
    there = {one.name: one for one in read_set(set_name, "both")} if set_name in names_of_sets() else {}
    told = []
    for case in cases:
        told.append(f"{'replaced' if case.name in there else 'added'} {case.name} ({case.half})")
        there[case.name] = case
    write_set(set_name, there.values())
    return told
