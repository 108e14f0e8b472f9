"""`model io`: copies alone, on the CPU, by a profile, and with a device that lacks memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import call

from loaderbench.recording.facts import Failure
from loaderbench.recording.model_io import IoFacts
from loaderbench.studies import model_io as study_module
from tests.studies.here import Here
from tests.studies.kept import assert_kept


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Here]]:
    """Jobs in this process."""

    class Own(Here):
        pass

    monkeypatch.setattr(study_module, "Child", Own)
    monkeypatch.setattr(study_module, "SECONDS", 0.01)
    yield Own


def test_copies_on_the_cpu_have_their_bytes_and_say_that_they_stay_in_ram(tmp_path: Path, here: type[Here]) -> None:
    shared = ("--device", "cpu", "--results", tmp_path)
    done = call("model", "io", "lenet", "--max-batch", "20", "--inc", "8", *shared, "--json", "-")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [one["batch_size"] for one in told["batches"]] == [1, 9, 17, 20] and told["same_memory"]
    for one in told["batches"]:
        # lenet takes 1×28×28 values of 4 bytes and gives 10
        assert one["data_in"]["num_bytes"] == one["batch_size"] * 28 * 28 * 4
        assert one["data_out"]["num_bytes"] == one["batch_size"] * 10 * 4
        for way in (one["data_in"], one["data_out"]):
            assert 0 < way["s"]["low"] <= way["s"]["value"] <= way["s"]["high"] and way["s"]["n"] >= 20
            assert way["bytes_per_s"]["value"] == pytest.approx(way["num_bytes"] / way["s"]["value"], rel=0.2)
    facts = assert_kept(tmp_path, "model_io", num_runs=0).facts
    assert isinstance(facts, IoFacts) and len(facts.batches) == facts.num_batches == 4
    assert "same RAM" in " ".join(call("show", "2", "--results", tmp_path).out.split())


def test_an_emulated_device_has_the_rate_of_its_profile(tmp_path: Path) -> None:
    shared = ("--device", "emulated", "--precision", "amp-bf16", "--results", tmp_path)
    done = call(
        "model", "io", "resnet50", "--batch-size", "4", "--max-batch", "8", "--inc", "4", *shared, "--json", "-"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    rate = told["known"]["bytes_per_s"]
    first = told["batches"][0]["data_in"]
    assert first["s"]["value"] == pytest.approx(4 * 3 * 224 * 224 * 4 / rate) and first["s"]["low"] is None
    assert "Nothing was measured here" in " ".join(call("show", "2", "--results", tmp_path).out.split())


def test_a_batch_that_does_not_fit_ends_it_and_is_told(tmp_path: Path, here: type[Here]) -> None:
    here.failing = staticmethod(
        lambda request: Failure("OutOfMemory", "too small") if request.batch_size > 9 else None  # type: ignore[attr-defined]
    )
    done = call("model", "io", "lenet", "--max-batch", "30", "--device", "cpu", "--results", tmp_path, "--json", "-")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["batches"]
    assert [one["batch_size"] for one in rows] == [1, 9, 17] and rows[-1]["why"] == "too small"
    assert rows[-1]["data_in"]["s"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--batch-size", "0"), "--batch-size must be at least 1"), (("--inc", "0"), "--inc must be at least 1"),
        (("--batch-size", "9", "--max-batch", "3"), "--max-batch 3 is below --batch-size 9"),
        (("--device", "tpu"), "unknown device 'tpu'"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_in_one_line(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = call("model", "io", "lenet", "--results", tmp_path, *flags)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1) and says in done.err
