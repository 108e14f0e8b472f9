"""The ledger of a store."""

from __future__ import annotations

from loaderbench.analysis.ledger import collected
from loaderbench.analysis.whatif_scored import measures, wanted_by
from loaderbench.recording.ledger import Collected
from loaderbench.recording.lines import LedgerLine
from loaderbench.recording.store import Store


def collect(store: Store) -> Collected:
    """Every prediction in the store that was measured, of all machines, oldest first. Reads no run's raw facts, and the
    whole records of those alone that measured one or may have. Runs and studies that cannot be read are left out and
    counted.

    Raises:
        ConfigError: the store's folder cannot be read. A missing one is an empty store.
    """
    stored = store.contents_in_lines(LedgerLine)
    asked = [one.study for one in stored.studies if one.study is not None and wanted_by(one.study) is not None]

    def tells(line: LedgerLine) -> bool:
        return line.is_measured or any(measures(one, line.case, line.status, line.started_at) for one in asked)

    measured = store.in_whole(line for line in stored.runs if line.record is not None and tells(line.record))
    damaged = sum(run.status == "unreadable" for run in stored.runs) + sum(run.record is None for run in measured)
    return collected(
        (run.record for run in measured if run.record is not None),
        (one.study for one in stored.studies if one.study is not None),
        damaged + sum(one.study is None for one in stored.studies),
    )
