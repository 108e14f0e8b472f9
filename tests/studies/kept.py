"""What holds of every study that is stored: it loads as it was written, and its facts give its findings again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import call

from loaderbench import plain
from loaderbench.analysis.again import differences
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.studies import judge
from loaderbench.plain import Json
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.files import DIGEST
from loaderbench.recording.store import Store, load_run
from loaderbench.recording.studies import Comparison, Findings, StudyKind, StudyRecord
from loaderbench.studies.again import records_of
from loaderbench.studies.measure import judged


def only_study(results: Path) -> StudyRecord:
    """The store's one study."""
    (stored,) = Store(results).studies()
    assert stored.study is not None, stored.problem
    return stored.study


def findings_json(findings: Findings | None) -> Json:
    """The findings as `study.json` holds them: the leading runs of a comparison lie beside it."""
    return plain.to_json(replace(findings, a=None, b=None) if isinstance(findings, Comparison) else findings)


def assert_kept(results: Path, kind: StudyKind, *, num_runs: int | None = None) -> StudyRecord:
    """The store's one study is whole: read, judged, shown and analysed again by every way in."""
    store, study = Store(results), only_study(results)
    assert (study.kind, study.schema, study.rules_version) == (kind, SCHEMA, RULES_VERSION)
    written = json.loads((results / study.study_id / "study.json").read_bytes())
    arrays: dict[str, Any] = {}
    assert plain.to_json(study, None, arrays) == {name: value for name, value in written.items() if name != DIGEST}
    assert (DIGEST in written) == bool(arrays)
    assert written["facts"] is not None and written["findings"] is not None
    # its runs lie where it says, and their facts give their records
    own = results / study.study_id / "runs"
    paths = {**{name: results / name for name in study.runs}, **{name: own / name for name in study.own_runs}}
    records = records_of(study, store)
    assert list(records) == list(paths) and num_runs in (None, len(paths))
    for name, path in paths.items():
        assert list(differences(plain.to_json(records[name]), plain.to_json(judged(load_run(path))))) == []
    # the facts and those records give the findings
    assert findings_json(judge(study.facts, records)) == written["findings"]
    # and the commands say so
    shown = call("show", study.study_id, "--results", results)
    assert (shown.code, shown.err) == (0, "") and shown.out.strip()
    as_json = call("show", study.study_id, "--results", results, "--json", "-")
    assert (as_json.code, as_json.err) == (0, "") and study.study_id in json.loads(as_json.out).values()
    again = call("analyze", study.study_id, "--results", results)
    assert (again.code, again.err) == (0, "")
    assert "reproduced exactly" in " ".join(again.out.split())
    every = call("analyze", "--all", "--results", results, "--json", "-", "--quiet")
    assert (every.code, every.err) == (0, "") and all(one["reproduced"] for one in json.loads(every.out))
    return study
