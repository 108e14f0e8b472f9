"""What a changed crew meets at the storage."""

from dataclasses import replace

import pytest

from loaderbench.pipeline.change import own_read_s
from loaderbench.pipeline.fit import batch_bytes, fit
from loaderbench.recording.facts import CeilingProbe, CeilingStage, Run
from tests.analysis.event_model import Pipeline
from tests.analysis.judging import run_of

PIPE = Pipeline(workers=4, latency_ms=200.0, decode_ms=20.0, busy_ms=10.0, tells_more=True)


def with_single_reader(run: Run, read_s: float) -> Run:
    """A probe whose readers take so long for the bytes of a batch, however many they are."""
    recording = run.recording
    assert recording is not None
    rate = batch_bytes(recording) / read_s
    stages = tuple(CeilingStage(n, round(n * rate), 1.0, 1000, None, (), 0.1, "O_DIRECT", 0.0, None) for n in (1, 2, 4))
    probe = CeilingProbe(stages, "max_readers", None, 1000)
    facts = replace(recording.facts, storage=replace(recording.facts.storage, ceiling=probe))
    return replace(run, recording=replace(recording, facts=facts))


@pytest.mark.parametrize(("probed_s", "alone_s"), [(0.2, 0.2), (2.0, 0.2), (0.02, 0.02)])
def test_a_reader_alone_takes_no_longer_than_the_probe_s_one_reader(probed_s: float, alone_s: float) -> None:
    # Reads of 200 ms a batch. Where the probe took 20, they waited for something else; in memory they may be quicker.
    fitted = fit(with_single_reader(run_of(PIPE), probed_s))
    assert fitted is not None
    assert own_read_s(fitted) + fitted.real.shared_s == pytest.approx(alone_s, rel=0.02)
