"""What samples name in a watched script, and what it would gain: against queues followed by a loop of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.invariants import broken
from loaderbench.analysis.record import analyze
from loaderbench.analysis.watched_looks import share_error
from loaderbench.analysis.watched_places import Detail, Named, named
from loaderbench.pipeline.fit import fit, residual
from loaderbench.recording.facts import SPAN, STEP, Collections, Run, Segment, WatchedLoader, WatchedSeconds
from loaderbench.recording.record import Bottleneck, Estimate, RunRecord, Verdict, Where
from loaderbench.recording.thread_samples import Place, SampledThread, SampleRows, State
from tests.watched_facts import followed, run_of, segment, untold

NUM = 240
WAIT = Place("/lib/queues.py", 1, "Queue.get", "", "library", "queue")
TRAIN = Place("/home/me/train.py", 20, "train", "net", "user", "step")


def steady(making_ms: float, step_ms: float, workers: int = 2, **parts: Any) -> Segment:
    random = np.random.default_rng(3)
    making = making_ms * random.uniform(0.97, 1.03, NUM)
    return segment(making, step_ms * random.uniform(0.97, 1.03, NUM), workers, **parts)


def step_ms(making_ms: float, step_ms: float, workers: int = 2) -> float:
    """Of the same queue, by another loop than the package's."""
    _, _, both = followed(np.full(NUM, making_ms), np.full(NUM, step_ms), workers, 2)
    return float(both[NUM - 1] - both[NUM // 4]) / (NUM - 1 - NUM // 4)


def with_samples(
    one: Segment, workers: int, in_step: list[tuple[Place, State, float]], in_worker: list[tuple[Place, State, float]],
    thread: Place | None = None, **facts: Any,
) -> Run:  # fmt: skip
    """Samples at times of a step; each place has its part of them."""
    rows, random = SampleRows(), np.random.default_rng(0)
    consumer, worker = (rows.add_thread(SampledThread(role)) for role in ("consumer", "worker"))  # type: ignore[arg-type]
    other = rows.add_thread(SampledThread("other", None, "77"))
    stamps = one.steps[:, [STEP["called_ns"], STEP["returned_ns"], STEP["done_ns"]]] / 1e9
    for called, returned, done in stamps:
        at = random.uniform(called, done)
        if at < returned and returned - called > 1e-6:
            rows.add(at, consumer, "pipe", 1.0, WAIT)
        else:
            number = random.choice(len(in_step), p=[part for *_, part in in_step])
            place, state, _ = in_step[number]
            rows.add(max(at, returned + 1e-7), consumer, state, 1.0, place)
        if in_worker:
            number = random.choice(len(in_worker), p=[part for *_, part in in_worker])
            place, state, _ = in_worker[number]
            rows.add(at, worker, state, 1.0, place)
        if thread is not None:
            rows.add(at, other, "running", 1.0, thread)
    run = spent(run_of(one, workers, **facts), one)
    assert run.recording is not None
    run.recording.samples = rows.samples()
    return run


def spent(run: Run, one: Segment, **of_loader: Any) -> Run:
    """The run with its loader's seconds as its stamps tell them."""
    assert run.recording is not None and run.recording.facts.watched is not None
    called, returned, done = one.steps[:, [STEP["called_ns"], STEP["returned_ns"], STEP["done_ns"]]].T / 1e9
    wait_s, step_s = float((returned - called).sum()), float((done - returned).sum())
    seen = run.recording.facts.watched
    loader = replace(seen.loaders[0], seconds=WatchedSeconds(0.1, 0.2, wait_s, step_s, 0.0, 0.0), **of_loader)
    watched = replace(seen, loaders=(loader,), wall_s=wait_s + step_s + 1.0)
    run.recording.facts = replace(run.recording.facts, watched=watched)
    return run


def judged(run: Run) -> RunRecord:
    record = analyze(run)
    assert broken(record) == []
    return record


def gain_of(record: RunRecord) -> float:
    assert record.verdict is not None
    found = record.verdict.speedup_if_removed[record.verdict.bottleneck]  # type: ignore[index]
    assert found is not None
    return found.value


@pytest.mark.parametrize(
    ("part", "function", "word"),
    [("checkpoint", "save", "checkpoint"), ("validation", "evaluate", "validation"), ("logging", "write", "logging")],
)
def test_a_pause_within_the_step_is_named_with_its_line(part: str, function: str, word: str) -> None:
    """A step of 10 ms, 6 of them in it; workers give a batch each 2 ms."""
    pause = Place("/home/me/train.py", 30, function, "torch.save", "user", part)
    one = steady(4.0, 10.0)
    record = judged(with_samples(one, 2, [(pause, "running", 0.6), (TRAIN, "running", 0.4)], []))
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("compute", word)
    assert (record.verdict.where[0].line, record.verdict.where[0].function) == (30, function)
    assert gain_of(record) == pytest.approx(step_ms(4.0, 10.0) / step_ms(4.0, 4.0), rel=0.2)


def test_a_pause_that_the_loader_would_not_let_gain_is_not_named() -> None:
    """Workers give a batch each 9.5 ms: without the pause the step would be no shorter."""
    pause = Place("/home/me/train.py", 30, "save", "torch.save", "user", "checkpoint")
    one = steady(19.0, 10.0)
    record = judged(with_samples(one, 2, [(pause, "running", 0.6), (TRAIN, "running", 0.4)], []))
    assert record.verdict is not None
    assert record.verdict.cause_detail == "step"


def with_sampler(one: Segment, sampler_ms: float) -> Segment:
    """With so much time of next() for a sampler in the script's process, behind a batch that is there."""
    steps = one.steps.copy()
    later = np.arange(len(steps)) * round(sampler_ms * 1e6)
    for name in ("called_ns", "returned_ns", "issued_ns", "waited_ns", "done_ns", "copy_begin_ns", "copy_end_ns"):
        steps[:, STEP[name]] += later + (0 if name == "called_ns" else round(sampler_ms * 1e6))
    assert one.spans is not None
    spans = one.spans.copy()
    asked = np.maximum(0, np.arange(len(steps)) - 3) * round(sampler_ms * 1e6)  # of four batches ahead
    spans[:, 1:3] += asked[:, None]
    return replace(one, steps=steps, spans=spans, closed_ns=int(steps[-1, STEP["done_ns"]]))


def test_a_sampler_in_the_main_process_is_preparation_and_gains_its_time() -> None:
    """A step of 5 ms and a sampler of 8: batches are always there, and no worker is busy."""
    one = with_sampler(steady(2.0, 5.0), 8.0)
    at = Place("/home/me/train.py", 13, "Balanced.__iter__", "np.random.choice", "user", "sampler")
    run = with_samples(one, 2, [(TRAIN, "running", 1.0)], [])
    assert run.recording is not None and run.recording.samples is not None
    samples = run.recording.samples
    waits = np.array([samples.places[number] == WAIT for number in samples.place])
    places = (*samples.places, at)
    run.recording.samples = replace(
        samples, places=places, place=np.where(waits, len(places) - 1, samples.place),
        state=np.where(waits, 0, samples.state),
    )  # fmt: skip
    seen = run.recording.facts.watched
    assert seen is not None
    loader: WatchedLoader = replace(seen.loaders[0], index_s=0.008)
    run.recording.facts = replace(run.recording.facts, watched=replace(seen, loaders=(loader,)))
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("prep", "sampler")
    assert record.verdict.where[0].callee == "np.random.choice"
    assert gain_of(record) == pytest.approx(13.0 / 5.0, rel=0.1)
    assert [one.code for one in record.verdict.advice][:1] == ["faster_sampler"]


@pytest.mark.parametrize(("state", "word"), [("sleep", "sleep"), ("lock", "lock")])
def test_a_wait_of_the_data_sets_code_that_is_no_reading_is_no_storage(state: State, word: str) -> None:
    """Workers wait for 32 of 40 ms a batch; without that they give one each 4 ms, and a step takes 5."""
    waits = Place("/home/me/data.py", 41, "D.__getitem__", "wait", "user", "dataset")
    works = Place("/home/me/data.py", 42, "D.__getitem__", "parse", "user", "dataset")
    one = steady(40.0, 5.0, read_part=0.8)
    run = with_samples(one, 2, [(TRAIN, "running", 1.0)], [(waits, state, 0.8), (works, "running", 0.2)])
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("prep", word)
    assert record.verdict.where[0].line == 41
    assert record.verdict.speedup_if_removed["storage"] is None
    assert gain_of(record) == pytest.approx(step_ms(40.0, 5.0) / step_ms(8.0, 5.0), rel=0.15)
    codes = {one.code for one in record.verdict.advice}
    assert not codes & {"cache_in_memory", "fewer_reads"}
    assert word != "lock" or "num_workers" not in codes


def test_reads_stay_storage() -> None:
    reads = Place("/home/me/data.py", 41, "D.__getitem__", "open", "user", "dataset")
    one = steady(40.0, 5.0, read_part=0.8)
    record = judged(with_samples(one, 2, [(TRAIN, "running", 1.0)], [(reads, "file", 0.8), (reads, "running", 0.2)]))
    assert record.verdict is not None
    assert record.verdict.bottleneck == "storage"


def test_the_line_that_costs_workers_most_is_named_and_advised() -> None:
    opens = Place("/home/me/zips.py", 14, "D.__getitem__", "zipfile.ZipFile", "user", "dataset")
    rest = Place("/home/me/zips.py", 15, "D.__getitem__", "np.asarray", "user", "dataset")
    one = steady(40.0, 5.0)
    record = judged(with_samples(one, 2, [(TRAIN, "running", 1.0)], [(opens, "running", 0.9), (rest, "running", 0.1)]))
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("prep", "dataset_code")
    assert (record.verdict.where[0].line, record.verdict.where[0].callee) == (14, "zipfile.ZipFile")
    advice = {one.code: one for one in record.verdict.advice}
    assert advice["cheaper_line"].details["line"] == "zips.py:14 zipfile.ZipFile"
    assert advice["cheaper_line"].predicted_speedup is not None
    assert advice["cheaper_line"].predicted_speedup.value == pytest.approx(
        step_ms(40.0, 5.0) / step_ms(4.0, 5.0), rel=0.15
    )


def test_another_thread_that_holds_the_gil_is_contention_with_its_line() -> None:
    """A step of 20 ms, of which 18 are waits for the GIL."""
    metrics = Place("/home/me/metrics.py", 5, "poll", "sum", "user", "step")
    one = replace(steady(2.0, 20.0), consumer_cpu_s=None)
    run = with_samples(one, 2, [(TRAIN, "gil", 0.9), (TRAIN, "running", 0.1)], [], metrics)
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("contention", "gil")
    assert record.verdict.where[0].file.endswith("metrics.py")
    assert gain_of(record) == pytest.approx(10.0, rel=0.35)


def test_a_wait_for_the_gil_is_no_thread_s_that_hardly_runs() -> None:
    """The script's thread waits for it in all steps but few; another one of its threads runs in one step of ten."""
    metrics = Place("/home/me/metrics.py", 5, "poll", "sum", "user", "step")
    run = with_samples(steady(2.0, 20.0), 2, [(TRAIN, "gil", 0.9), (TRAIN, "running", 0.1)], [], metrics)
    assert run.recording is not None and run.recording.samples is not None
    samples = run.recording.samples
    (other,) = samples.threads_of("other")
    some = samples.thread != other
    some |= np.arange(len(some)) % 30 == np.flatnonzero(~some)[0] % 30
    run.recording.samples = replace(
        samples, time_s=samples.time_s[some], thread=samples.thread[some], state=samples.state[some],
        place=samples.place[some], weight_s=samples.weight_s[some],
    )  # fmt: skip
    record = judged(run)
    assert record.verdict is not None
    assert record.verdict.cause_detail != "gil"


def test_the_processor_time_of_the_script_s_thread_is_counted_and_not_drawn() -> None:
    """Of a step of 20 ms its thread runs for 0.5: by 240 looks of which one in ten is elsewhere, 2 ms would be left."""
    metrics = Place("/home/me/metrics.py", 5, "poll", "sum", "user", "step")
    one = replace(steady(2.0, 20.0), consumer_cpu_s=0.0005 * (NUM - 8))
    record = judged(with_samples(one, 2, [(TRAIN, "gil", 0.9), (TRAIN, "running", 0.1)], [], metrics))
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("contention", "gil")
    assert gain_of(record) == pytest.approx(step_ms(2.0, 20.0) / step_ms(2.0, 0.5), rel=0.1)


def test_more_threads_than_processors_gain_at_least_what_processors_allow() -> None:
    """12 threads of PyTorch on 2 processors: 15 of 20 ms wait for the others. How much of the rest is spinning, nothing
    tells: no high end."""
    one = steady(2.0, 20.0)
    run = with_samples(one, 2, [(TRAIN, "lock", 0.75), (TRAIN, "running", 0.25)], [], torch_threads=12)
    assert run.environment is not None
    run = replace(run, environment=replace(run.environment, cpus_usable=2))
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("contention", "own_threads")
    gain = record.verdict.gain
    assert gain is not None and gain.low is not None and gain.high is None
    assert 1.0 < gain.low <= gain.value


def test_collections_are_timed_and_named_by_the_line_that_they_were_at() -> None:
    """Every sixth step holds one of 30 ms; steps are 8 ms else."""
    random = np.random.default_rng(5)
    steps = np.where(np.arange(NUM) % 6 == 5, 38.0, 8.0) * random.uniform(0.99, 1.01, NUM)
    one = segment(np.full(NUM, 4.0), steps, 2)
    run = with_samples(one, 2, [(TRAIN, "running", 1.0)], [])
    assert run.recording is not None
    begins = one.steps[np.arange(NUM) % 6 == 5, STEP["returned_ns"]] + 1_000_000
    pauses = np.column_stack([begins, begins + 30_000_000, np.full(len(begins), 2), np.zeros(len(begins), int)])
    run.recording.collections = Collections(pauses.astype(np.int64), (("/home/me/train.py", 33, "main"),))
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("compute", "gc")
    assert record.verdict.where[0].line == 33
    assert gain_of(record) == pytest.approx(13.0 / 8.0, rel=0.05)


def in_main_process(run: Run, one: Segment, making: Place, state: State, step: Place) -> Run:
    """The run with a sample in each batch's making and one in its step, all of the script's thread."""
    assert run.recording is not None
    rows = SampleRows()
    consumer = rows.add_thread(SampledThread("consumer"))
    for called, returned, done in one.steps[:, [STEP["called_ns"], STEP["returned_ns"], STEP["done_ns"]]] / 1e9:
        rows.add((called + returned) / 2, consumer, state, returned - called, making)
        rows.add((returned + done) / 2, consumer, "running", done - returned, step)
    run.recording.samples = rows.samples()
    return run


def test_a_line_that_makes_batches_in_the_script_s_thread_has_its_part_of_that_thread() -> None:
    """12 of 16 ms make a batch and 4 work on it, both by the same line of the same function."""
    line = Place("/home/me/train.py", 7, "burn", "crunch", "user", "loader")
    one = steady(12.0, 4.0, workers=0)
    run = spent(run_of(one, 0), one, kind="function", workers=0)
    record = judged(in_main_process(run, one, line, "running", replace(line, part="step")))
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == ("prep", "no_loader")
    parts = {one.part: one.fraction for one in record.verdict.where}
    assert parts == {"loader": pytest.approx(0.75, abs=0.02), "step": pytest.approx(0.25, abs=0.02)}
    assert "figures_contradict" not in [one.code for one in record.caveats]


@pytest.mark.parametrize(("state", "expected"), [("sleep", ("prep", "sleep")), ("lock", ("mixed", None))])
def test_what_an_iterable_s_batches_take_has_its_line_where_they_are_made_there(
    state: State, expected: tuple[Bottleneck, str | None]
) -> None:
    """10 of 15 ms sleep in its generator. A wait for a lock there may be one for threads of its own, which may read."""
    line = Place("/home/me/own.py", 4, "batches", "time.sleep", "user", "loader")
    one = steady(10.0, 5.0, workers=0)
    record = judged(in_main_process(spent(untold([one]), one), one, line, state, TRAIN))
    assert record.verdict is not None
    assert (record.verdict.bottleneck, record.verdict.cause_detail) == expected
    assert record.verdict.where[0].line == 4
    if state == "sleep":
        assert gain_of(record) == pytest.approx(3.0, rel=0.05)


def test_too_few_samples_name_nothing() -> None:
    pause = Place("/home/me/train.py", 30, "save", "torch.save", "user", "checkpoint")
    run = with_samples(steady(4.0, 10.0), 2, [(pause, "running", 0.6), (TRAIN, "running", 0.4)], [])
    assert run.recording is not None and run.recording.samples is not None
    samples = run.recording.samples
    some = slice(0, 20)
    run.recording.samples = replace(
        samples, time_s=samples.time_s[some], thread=samples.thread[some], state=samples.state[some],
        place=samples.place[some], weight_s=samples.weight_s[some],
    )  # fmt: skip
    record = judged(run)
    assert record.verdict is not None
    assert (record.verdict.cause_detail, record.verdict.where) == ("step", ())


def test_what_the_script_does_itself_is_named_before_its_neighbours() -> None:
    """Processes of others come and go; a sampler that costs 1.5× stays. Worth less, it does not."""

    def gain(value: float) -> Estimate:
        return Estimate(value, value * 0.95, value * 1.05, "ratio", 9, "test")

    crowded = Verdict("contention", speedup_if_removed={"contention": gain(1.95)})
    for worth, expected in ((1.5, ("prep", "sampler")), (1.2, ("contention", "neighbours"))):
        sampler = Detail("prep", "sampler", gain(worth), Where("consumer", "running", "t.py", 13, "f", 0.4), 0.01)
        found = named(crowded, Named((sampler,), None, (), 0.03, None), "neighbours")
        assert (found.bottleneck, found.cause_detail) == expected


@pytest.mark.parametrize(("in_making", "expected"), [(True, ("contention", "gil")), (False, ("prep", None))])
def test_what_holds_up_the_making_of_batches_is_why_they_take_long(
    in_making: bool, expected: tuple[Bottleneck, str | None]
) -> None:
    """A batch that is not made at all would gain 4.5×, as the thread that holds the GIL leaves 3.3×."""

    def gain(value: float) -> Estimate:
        return Estimate(value, value * 0.95, value * 1.05, "ratio", 9, "test")

    verdict = Verdict("mixed", joint=("storage", "prep"), joint_speedup=gain(4.5))
    line = Where("other", "running", "t.py", 13, "f", 0.9)
    holder = Detail("contention", "gil", gain(3.3), line, 0.01, in_making=in_making)
    found = named(verdict, Named((holder,), None, (), 0.03, 0.0), None)
    assert (found.bottleneck, found.cause_detail) == expected


def test_what_next_takes_before_a_batch_is_made_is_part_of_a_step_without_workers() -> None:
    """2 ms of waiting for the GIL, 3 of making, 1 of the script's own: all of a step of 6."""
    one = steady(5.0, 1.0, workers=0)
    assert one.spans is not None
    spans = one.spans.copy()
    spans[:, SPAN["start_ns"]] += 2_000_000
    fitted = fit(run_of(replace(one, spans=spans), 0))
    assert fitted is not None
    assert residual(fitted) == pytest.approx(0.0, abs=0.01)
    assert fitted.real.batches.take.mean() == pytest.approx(2e-3, rel=0.02)


def test_a_share_of_few_looks_is_known_less_well() -> None:
    """Against 20,000 draws of so many looks, of which each is at the place with the same chance."""
    random = np.random.default_rng(0)
    for part, num in ((0.5, 30), (0.9, 60), (0.2, 400)):
        drawn = random.binomial(num, part, 20_000) / num
        assert share_error(part, num) == pytest.approx(float(drawn.std()), rel=0.15)
    assert share_error(0.0, 30) > 0 and share_error(1.0, 30) > 0


@pytest.mark.parametrize(
    ("bottleneck", "worth", "expected"),
    [("prep", 2.0, "affinity"), ("contention", 2.0, "affinity"), ("prep", 1.15, None), ("storage", 2.0, None)],
)
def test_an_affinity_is_named_first_where_processors_limit_the_script(
    bottleneck: Bottleneck, worth: float, expected: str | None
) -> None:
    """Doing no preparation would gain more, and one setting undoes the affinity. Storage it does not undo."""

    def gain(value: float) -> Estimate:
        return Estimate(value, value * 0.95, value * 1.05, "ratio", 9, "test")

    verdict = Verdict(bottleneck, speedup_if_removed={bottleneck: gain(8.0)})  # type: ignore[dict-item]
    limit = Detail("contention", "affinity", gain(worth), None, 0.0, {"allowed": 1, "cpus": 2}, is_counted=True)
    found = named(verdict, Named((limit,), None, (), 0.03, None), None)
    assert found.cause_detail == expected and found.bottleneck == ("contention" if expected else bottleneck)
