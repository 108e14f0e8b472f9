"""A member's turns in this process: every model, what does not fit, and the times of an emulated device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from split_facts import toy_card

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import Shapes
from loaderbench.cases.options import ModelOptions
from loaderbench.errors import OutOfMemory
from loaderbench.running.jobs import member as job
from loaderbench.running.jobs.table import MemberRequest, PartRequest, WarmRequest
from loaderbench.running.memory_cap import MemoryCap
from loaderbench.studies.split_plan import plan_split

PAPER_MODELS = (
    "mobilenet_v2", "squeezenet1_0", "squeezenet1_1", "resnet18", "resnet34", "resnet50", "inception_v3", "vgg16",
    "vgg19", "densenet121",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_member_stays() -> Iterator[None]:
    yield
    job._member.cache_clear()


def nothing(message: object) -> None:
    pass


def request_of(model: str, batch: int = 3, size: int = 64, device: str = "cpu") -> MemberRequest:
    return MemberRequest(Step(model, "infer", "fp32", device, batch, size, channels=1 if model == "lenet" else 3), 0)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=[] if model == "squeezenet1_1" else [pytest.mark.slow]) for model in PAPER_MODELS
    ],
)  # fmt: skip
def test_the_parts_of_every_model_make_the_whole(model: str) -> None:
    request = request_of(model, size=80 if model == "inception_v3" else 64)
    whole = job.run_part(PartRequest(request, 3, 0, 0, 0, True), nothing).output
    parts = [job.run_part(PartRequest(request, size, first, 0, 0, True), nothing) for first, size in ((0, 2), (2, 1))]
    assert whole is not None and whole.shape == (3, 1000) and np.isfinite(whole).all()
    outputs = [part.output for part in parts if part.output is not None]
    deviation = np.linalg.norm(np.concatenate(outputs) - whole, axis=1) / np.linalg.norm(whole, axis=1)
    others = np.linalg.norm(whole[1:] - whole[:-1], axis=1) / np.linalg.norm(whole[1:], axis=1)
    assert deviation.max() < 1e-4 and others.min() > 3 * deviation.max()  # another image's would be seen


def test_a_part_that_does_not_fit_is_told_and_a_smaller_one_goes_on() -> None:
    request = request_of("lenet", batch=64, size=28)
    job.open_member(request, nothing)
    with MemoryCap(1_000_000), pytest.raises(OutOfMemory, match=r"^64 images need more than this machine's free"):
        job.warm_member(WarmRequest(request, 64, 0, 0), nothing)
    with MemoryCap(1_000_000):
        assert job.warm_member(WarmRequest(request, 1, 0, 0), nothing) > 0


def test_what_does_not_fit_at_the_start_is_told_as_lack_of_memory() -> None:
    with MemoryCap(100_000), pytest.raises(OutOfMemory, match="the model and the batch need more than this"):
        job.open_member(request_of("lenet", batch=64, size=28), nothing)  # the batch of 200 kB in the host's memory
    with MemoryCap(100_000), pytest.raises(OutOfMemory, match="the model and the batch need more than this"):
        job.open_member(request_of("squeezenet1_1"), nothing)  # the weights


def test_an_emulated_member_takes_what_its_profile_says_and_has_no_outputs(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(toy_card(8, 40.0))
    device = f"cpu:1,emulated:{tmp_path / 'toy.toml'}x0.5"
    options = ModelOptions(device=device, input_shape=Shapes.parse("3,28,28"), precision="fp32")
    member = plan_split("lenet", options, 8, tmp_path).members[1]
    known_s = member.known_seconds(4)
    # 40 ms for 8 images, at half the speed; 4 images of 3·28·28 values and a label over 1 MB/s
    assert known_s == pytest.approx(0.040 + 4 * (3 * 28 * 28 * 4 + 8) / 1e6)
    request = MemberRequest(member.step, 0)
    run = job.run_part(PartRequest(request, 4, 0, 0, 0, True), nothing)
    assert known_s - 1e-6 <= (run.end_ns - run.begin_ns) / 1e9 < known_s + 1.0
    assert run.output is None


def test_a_member_goes_on_until_the_others_are_done_and_tells_of_its_first_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that only turns move: 10 ms each."""
    now_ns, turns = 0, list[tuple[int, int]]()

    def turn(self: job.Member, first: int, size: int) -> tuple[int, int, None]:
        nonlocal now_ns
        now_ns += 10_000_000
        turns.append((first, size))
        return now_ns - 10_000_000, now_ns, None

    request = request_of("lenet", batch=8, size=28)
    job.open_member(request, nothing)
    monkeypatch.setattr(job.Member, "turn", turn)
    run = job.run_part(PartRequest(request, 3, 5, 25_000_000, 0, False), nothing)
    assert (run.begin_ns, run.end_ns) == (0, 10_000_000) and turns == [(5, 3)] * 3
    assert job.warm_member(WarmRequest(request, 2, 1, now_ns + 15_000_000), nothing) == pytest.approx(0.01)
    assert turns[3:] == [(1, 2)] * 2
    job.warm_member(WarmRequest(request, 2, 1, 0), nothing)
    assert len(turns) == 6  # one, where no time is asked for
