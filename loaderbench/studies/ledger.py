"""The ledger of a store."""

from __future__ import annotations

from loaderbench.analysis.ledger import collected
from loaderbench.recording.ledger import Collected
from loaderbench.recording.store import Store


def collect(store: Store) -> Collected:
    """Every prediction in the store that was measured, of all machines, oldest first. Reads records and studies, no
    run's raw facts; runs and studies that cannot be read are left out and counted.

    Raises:
        ConfigError: the store's folder cannot be read. A missing one is an empty store.
    """
    runs, studies = store.runs(), store.studies()
    damaged = sum(run.status == "unreadable" for run in runs) + sum(one.study is None for one in studies)
    return collected(
        (run.record for run in runs if run.record is not None),
        (one.study for one in studies if one.study is not None),
        damaged,
    )
