"""What a stored run says of loader and storage, for studies of a model that has none."""

from __future__ import annotations

from pathlib import Path

from loaderbench.devices.select import traits_of
from loaderbench.errors import ConfigError
from loaderbench.findings.table import words
from loaderbench.machine import environment
from loaderbench.plain import Json
from loaderbench.recording.model_size import FEED_STAGES, FeedFacts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.studies.measure import same_machine


def find_feed(store: Store, run: str | None, data: Path | None) -> tuple[FeedFacts | None, str | None]:
    """(the stored run's figures, why there are none). Without `run`: the newest whole run of this machine, of the data
    set `data` or else of the only data set that is stored.

    Raises:
        ConfigError: `run` names none, or one without figures.
    """
    if run is not None:
        stored = store.find(run)
        if stored.record is None or not stored.record.measured:
            raise ConfigError(f"--run {run}: {stored.run_id} has no results ({stored.problem or stored.status})")
        return feed_of(stored.record, named=True), None
    here = environment()
    records = [
        stored.record
        for stored in store.runs()
        if stored.record is not None
        and stored.record.status == "ok"
        and stored.record.measured
        and same_machine(stored.record.environment, here)
    ]
    if data is not None:
        wanted = data.resolve()
        records = [one for one in records if wanted in (_place(one), _place(one).parent)]
    if not records:
        return None, words("no_run_stored", {"data_set": None if data is None else data.name})
    places = {_place(one) for one in records}
    if len(places) > 1:
        names: list[Json] = [*sorted(place.name for place in places)[:4]]
        return None, words("several_data_sets", {"names": names})
    return feed_of(records[-1], named=False), None


def _place(record: RunRecord) -> Path:
    return Path(record.case.subject.dataset).resolve()


def feed_of(record: RunRecord, *, named: bool) -> FeedFacts:
    """The figures of a run that a model's demand is compared with."""
    case, storage = record.case, record.storage
    cpu_s, no_cpu_s = _cpu_seconds(record)
    return FeedFacts(
        run_id=record.run_id,
        named=named,
        dataset_name=case.subject.dataset_name,
        resolution=case.subject.resolution,
        loader=case.feed.loader,
        workers=case.feed.workers,
        input_size=case.step.input_size,
        capacities={stage: (record.capacities or {}).get(stage) for stage in FEED_STAGES},
        cpu_s_per_sample=cpu_s,
        no_cpu_s=no_cpu_s,
        mean_file_bytes=None if storage is None else storage.mean_file_bytes,
    )


def _cpu_seconds(record: RunRecord) -> tuple[float | None, str | None]:
    """(CPU seconds an image of loader and training loop, why they are not known)."""
    try:
        computed_here = traits_of(record.case.step.device).on_host_cpus
    except ConfigError:  # a plug-in's device that is not installed here
        return None, words("device_unknown_here", {})
    if computed_here:
        return None, words("computed_on_cpu", {})
    seconds = None if record.cpu is None else record.cpu.seconds_per_sample
    return seconds, None if seconds is not None else words("no_cpu_times", {})
