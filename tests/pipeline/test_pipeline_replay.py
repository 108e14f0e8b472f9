"""The replay against arithmetic: pipelines whose step follows from their parts."""

import numpy as np
import pytest

from loaderbench.pipeline.replay import of_ranks, orders, step_s
from loaderbench.pipeline.stages import Batches, Stages, Standstill

MS = 1e-3
NUM = 48


def stages(workers: int = 2, *, prefetch: int = 2, in_flight: int = 2, **given: object) -> Stages:
    """Equal batches; columns in ms, other fields as they are."""
    columns = {name: value * MS for name, value in given.items() if name in Batches.__dataclass_fields__}  # type: ignore[operator]
    rest = {name: value for name, value in given.items() if name not in columns}
    made = Batches.of(NUM).changed(**columns)
    begun = Stages(
        workers, max(1, workers) * prefetch, True, in_flight, False, made, np.arange(NUM) // 16,
        np.ones(NUM, dtype=np.bool_), np.full(3, 1.0), 1.0, np.inf,
    )  # fmt: skip
    return begun.with_(**rest)


def step_ms(one: Stages) -> float:
    return float(step_s(one, orders(one, 0))[0]) / MS


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (stages(read=20.0, prep=60.0, device=10.0), 40.0),  # two workers
        (stages(4, read=20.0, prep=60.0, device=10.0), 20.0),
        (stages(4, read=20.0, prep=60.0, device=50.0), 50.0),  # the device
        (stages(4, read=20.0, prep=60.0, device=50.0, copy=7.0), 57.0),  # one stream
        (stages(4, read=20.0, prep=60.0, device=50.0, copy=7.0, overlap=True), 50.0),
        (stages(4, prep=10.0, device=5.0, issue=12.0), 12.0),  # the host
        (stages(4, prep=10.0, device=5.0, issue=12.0, take=3.0), 15.0),
        (stages(0, read=20.0, prep=60.0, device=50.0), 80.0),  # it prepares meanwhile
        (stages(0, read=20.0, prep=60.0, device=90.0), 90.0),
        (stages(0, read=20.0, prep=60.0, device=50.0, issue=5.0), 85.0),
        (stages(0, read=20.0, prep=60.0, issue=50.0, in_flight=0), 130.0),  # computes on the processors
        (stages(8, read=20.0, prep=10.0, shared_s=25 * MS, device=5.0), 25.0),  # the storage
        (stages(8, read=0.0, prep=10.0, shared_s=25 * MS, in_line=True), 25.0),
        (stages(2, read=20.0, prep=10.0, shared_s=10 * MS, in_line=True), 20.0),  # 40 each
        (stages(8, prep=10.0, cpu=50.0, processors=2.0), 25.0),  # the processors
        (stages(2, prep=40.0, hand=10.0), 25.0),
        (stages(1, prefetch=1, prep=40.0, device=5.0, issue=30.0), 40.0),  # one ahead: it is made meanwhile
    ],
)
def test_equal_batches(one: Stages, expected: float) -> None:
    assert step_ms(one) == pytest.approx(expected, rel=1e-6)


def test_delivery_delays_the_batch_and_not_the_host() -> None:
    fed = stages(4, read=20.0, prep=60.0, device=50.0, send=15.0)
    assert step_ms(fed) == pytest.approx(50.0)
    paced = stages(2, read=20.0, prep=60.0, device=10.0, send=15.0)
    assert step_ms(paced) == pytest.approx(40.0)


def test_a_slow_batch_holds_up_no_other_at_the_storage() -> None:
    # Three batches in 48, each of another worker, take 200 ms longer to read. A deep queue bridges them: four workers
    # make a batch in 25 ms on average, slow ones included, where the device takes 30.
    read = np.full(NUM, 50 * MS)
    read[[3, 20, 37]] += 0.2
    deep = stages(4, prefetch=16, prep=37.0, device=30.0, shared_s=12 * MS).with_(read=read)
    assert step_ms(deep) == pytest.approx(30.0, rel=0.01)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_standstills_take_their_part_of_the_time(workers: int) -> None:
    stood = stages(workers, read=40.0 * max(1, workers), standstill=Standstill(1.0, 0.25), measured_s=0.05)
    assert step_ms(stood) == pytest.approx(40.0 / 0.75, rel=0.03)


def test_a_standstill_that_the_queue_bridges_costs_nothing() -> None:
    # 0.1 s in each second; 16 batches of 20 ms lie ready.
    stood = stages(4, prefetch=4, read=40.0, device=20.0, standstill=Standstill(1.0, 0.1), measured_s=0.02)
    assert step_ms(stood) == pytest.approx(20.0, rel=0.01)


def test_the_first_free_thread_takes_the_next_batch() -> None:
    # Every second batch takes 100 ms, the others 20. In turn one of two workers has all slow ones; the first that is
    # free takes 60 on average.
    read = np.where(np.arange(NUM) % 2, 0.1, 0.02)
    one = stages(2, prefetch=8).with_(read=read)
    order = orders(one, 0)
    in_turn = step_s(one, type(order)(np.arange(NUM * 8)[None] % NUM, np.array([NUM * 6]), 1, 1))
    free = step_s(one.with_(in_turn=False), type(order)(np.arange(NUM * 8)[None] % NUM, np.array([NUM * 6]), 1, 1))
    assert in_turn[0] == pytest.approx(0.05, rel=0.02) and free[0] == pytest.approx(0.03, rel=0.05)


def test_ranks_in_step_wait_for_the_slowest() -> None:
    # Each batch takes 10 ms or, one in four, 20. Of 64 ranks one meets a slow one in nearly every step.
    random = np.random.default_rng(3)
    device = np.where(random.random(NUM) < 0.25, 0.02, 0.01)
    one = stages(4).with_(device=device)
    order = orders(one, 32)
    apart, together = (step_s(one, order, ranks=ranks) for ranks in (1, len(order.rows)))
    assert apart[0] == pytest.approx(float(device.mean()), rel=0.02)
    assert together[0] == pytest.approx(0.02, rel=0.02) and np.ptp(together) < 1e-9


@pytest.mark.parametrize("ranks", [1, 2, 8, 1024])
def test_the_slowest_of_some_ranks_is_the_largest_of_as_many_draws(ranks: int) -> None:
    # A batch takes 20 ms with probability p, else 10: the slowest of N takes 10 + 10 (1 − (1 − p)^N) on average.
    device = np.full(NUM, 0.01)
    device[[1, 5, 6, 11, 17, 23, 24, 30, 37, 38, 40, 46]] = 0.02
    one = stages(4).with_(device=device)
    order = of_ranks(orders(one, 3), ranks, np.random.default_rng(1))
    found = step_s(one, order, ranks=ranks).reshape(-1, ranks)
    assert np.ptp(found, axis=1).max() < 1e-9
    assert found[0, 0] == pytest.approx(0.01 + 0.01 * (1 - 0.75**ranks), rel=0.05)


def test_blocks_and_windows_are_drawn_anew() -> None:
    # Windows of 10, 20 and 30 ms a step, alike inside: their mean's spread is that of three drawn with return.
    device = np.repeat([0.01, 0.02, 0.03], 16)
    one = stages(2).with_(device=device)
    order = orders(one, 400)
    drawn = step_s(one, order)
    assert drawn[0] == pytest.approx(0.02, rel=1e-6)
    assert drawn[401:].std() == pytest.approx(0.01 * (2 / 3) ** 0.5 / 3**0.5, rel=0.1)
    assert drawn[1:401].std() == pytest.approx(0.01 * (2 / 3) ** 0.5 / 12**0.5, rel=0.1)  # twelve blocks
