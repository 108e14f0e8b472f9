"""The view while something is measured: figures on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import example_records as examples
import pytest
from rich.console import Console

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.facts import Failure
from loaderbench.recording.progress import Notice, Phase, SegmentDone, SoFar, StepsDone
from loaderbench.recording.record import Estimate, Verdict
from loaderbench.reporting import live
from loaderbench.reporting.live import Progress

CASE = examples.case(batch_size=64)
FAILED = replace(examples.ended_badly(), failure=Failure("CaseFailed", "worker 3 was \x1b[31mkilled"))


def segment(arm: Arm, step_s: float) -> SegmentDone:
    return SegmentDone(arm, round=1, num_steps=10, num_samples=640, encoded_bytes=64_000_000, step_s=step_s)


def drive(view: Progress) -> None:
    view.message(CASE, Phase("starting the loader"))
    view.message(CASE, segment(Arm.DEVICE, 0.032))
    view.message(CASE, segment(Arm.REAL, 0.128))
    view.finished(FAILED)


def test_on_a_terminal_rate_stall_bandwidth_and_time_left_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REDRAW_S", -1.0)
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    with Progress(2, quiet=False, expected_s=[10.0, 10.0], console=console) as view:
        drive(view)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    # 64 images in 128 ms; 32 of the 128 ms with data ready; 100 kB an image.
    assert "500 images/s · stall 75 % · files 50.0 MB/s" in text
    assert "[1/2, 20 s left]" in text
    assert "of at most 10 s" in text
    assert "failed: worker 3 was \ufffd[31mkilled" in text
    assert max(map(len, re.split(r"[\r\n]", text))) <= 80


def test_how_long_a_case_takes_is_what_its_process_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REDRAW_S", -1.0)

    def shown(case: Case, *messages: Notice) -> str:
        out = io.StringIO()
        with Progress(1, quiet=False, console=Console(file=out, width=80, force_terminal=True)) as view:
            for message in (Phase("starting the loader"), *messages):
                view.message(case, message)
        return out.getvalue()

    assert f"of at most {CASE.effort.duration_s:.0f} s" in shown(CASE)
    assert "of about 52 s" in shown(CASE, Notice("evicting takes about 33 s", 52.2))
    steps = CASE.changed(steps=64)  # they take what they take
    assert " s · starting" in shown(steps) and "of at most" not in shown(steps)
    assert "of about 410 s" in shown(steps, Notice("--steps 64 take about 400 s", 410.0))
    assert "of at most" in shown(CASE.changed(steps=64, strict_duration=True))


def test_elsewhere_a_line_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, quiet=False, expected_s=[10.0, 10.0]) as view:
        drive(view)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[1/2, 20 s left] photos/512 multiprocess")
    assert lines[1].startswith("failed: worker 3")


def test_a_case_that_has_been_named_is_not_named_again_but_the_next_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, quiet=False, named=CASE) as view:
        view.message(CASE, Phase("opening the device"))
        assert capsys.readouterr().err == ""
        view.message(CASE.changed(workers=7), Phase("opening the device"))
    assert "w7" in capsys.readouterr().err


def test_quiet_is_quiet_but_for_failures(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, quiet=True) as view:
        drive(view)
    assert capsys.readouterr().err.splitlines() == ["failed: worker 3 was \ufffd[31mkilled"]


def test_time_left_follows_what_cases_took() -> None:
    out = io.StringIO()
    with Progress(3, quiet=True, expected_s=[10.0, 10.0, 10.0], console=Console(file=out)) as view:
        assert view._left() == ", 30 s left"
        view.finished(replace(examples.measured(), wall_s=20.0))
        assert view._left() == ", 40 s left"


def test_work_that_belongs_to_no_case_shows_its_phase_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "REDRAW_S", -1.0)
    out = io.StringIO()
    with Progress(1, quiet=False, console=Console(file=out, width=80, force_terminal=True)) as view:
        view.message(None, Phase("listing \x1b[31mimages"))
        view.message(None, StepsDone(3, 10))
    assert "listing \ufffd[31mimages" in out.getvalue() and "step 3 of 10" in out.getvalue()
    assert "of at most" not in out.getvalue()
    with Progress(1, quiet=False) as view:
        view.message(None, Phase("listing images"))
    assert capsys.readouterr().err == ""


def so_far(cause: str, gain: float, since_s: float, low: float | None = 1.4, high: float | None = 3.2) -> SoFar:
    compute = Estimate(9.0, 8.0, 10.0, "ratio", 8, "blocks")
    removed = {cause: Estimate(gain, low, high, "ratio", 8, "blocks"), "compute": compute}
    return SoFar(Verdict(bottleneck=cause, speedup_if_removed=removed), since_s)  # type: ignore[arg-type]


def test_on_a_terminal_the_verdict_so_far_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REDRAW_S", -1.0)
    out = io.StringIO()
    with Progress(1, quiet=False, console=Console(file=out, width=80, force_terminal=True)) as view:
        view.message(CASE, Phase("starting the loader"))
        view.message(CASE, so_far("storage", 2.1, 12.3))
        view.message(CASE, Notice("evicting takes long"))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    assert "so far: storage, 2.10× (1.40 – 3.20); 12 s" in text
    assert "evicting takes long" in text


def test_a_verdict_is_drawn_at_once_behind_the_window_that_was_just_drawn() -> None:
    out = io.StringIO()
    with Progress(1, quiet=False, console=Console(file=out, width=80, force_terminal=True)) as view:
        view._drawn -= 10
        view.message(CASE, Phase("starting the loader"))
        view.message(CASE, so_far("storage", 2.1, 12.3))
        assert "so far: storage" in out.getvalue()  # the next message may be seconds away


def test_elsewhere_the_verdict_so_far_is_said_when_its_cause_changes(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(num_cases: int, *, quiet: bool = False) -> list[str]:
        with Progress(num_cases, quiet=quiet) as view:
            for found in (
                so_far("storage", 2.1, 5.0),
                so_far("storage", 2.2, 6.0),
                so_far("prep", 1.3, 7.0, high=None),
            ):
                view.message(CASE, found)
            view.message(CASE, Notice("evicting takes long"))
        return capsys.readouterr().err.splitlines()[1:]

    assert lines(1) == [
        "so far: storage, 2.10× (1.40 – 3.20); 5 s",
        "so far: CPU preparation (decode, augment, collate), at least 1.4×; 7 s",
        "evicting takes long",
    ]
    # in a sweep each case's table says it; a run that cannot keep its time says so there too
    assert lines(3) == ["evicting takes long"]
    assert lines(1, quiet=True) == []


def test_a_rough_verdict_is_told_with_its_signs_and_is_none_of_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, quiet=False) as view:
        view.message(CASE, SoFar(Verdict("storage"), 6.6, "waits for batches 95% of 2.0 s"))
        view.message(CASE, so_far("storage", 2.1, 12.3))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "so far, roughly: storage; 7 s (waits for batches 95% of 2.0 s)",
        "so far: storage, 2.10× (1.40 – 3.20); 12 s",
    ]
