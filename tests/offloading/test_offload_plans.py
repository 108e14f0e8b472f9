"""Plans against a replay and a search that know nothing of the planner, over random traces and real ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from loaderbench.errors import DoesNotFit
from loaderbench.offloading.plan import Plan, least_cap, ledger, plan_for
from loaderbench.recording.model_offload import NOT_SAVED, SAVED_EVENTS, SavedTrace
from tests.offloading.steps import step_of, traced

NUMBER = {name: number for number, name in enumerate(SAVED_EVENTS)}
Row = tuple[str, int]


def made(sizes: list[int], rows: list[Row], mode: str = "train", clean: tuple[int, ...] = ()) -> SavedTrace:
    """A trace of rows (what, value)."""
    saved = np.array([[size, int(number in clean), 0] for number, size in enumerate(sizes)], dtype=np.int64)
    table = np.array([[NUMBER[what], value, 1, 0, 0] for what, value in rows], dtype=np.int64)
    return SavedTrace(mode, 1, saved.reshape(-1, 3), table.reshape(-1, 5), ("",), ("layer",), None)  # type: ignore[arg-type]


@dataclass
class Moved:
    """What a replay by hand found. It keeps sets of (who, what) that are on the device, and adds them up each time."""

    peak: int = 0
    host_peak: int = 0
    out: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)


def replay(trace: SavedTrace, plan: Plan) -> Moved:
    sizes, moved = trace.saved[:, 0].tolist(), Moved()
    other, event = 0, -1
    present: set[tuple[str, int]] = set()
    on_host, packed = set(plan.start_on_host), set(plan.start_on_host)

    def look() -> None:
        moved.peak = max(moved.peak, other + sum(sizes[one] for one in {what for _, what in present}))
        moved.host_peak = max(moved.host_peak, sum(sizes[one] for one in on_host))

    def is_there(saved: int) -> bool:
        return ("others", saved) in present or ("hooks", saved) in present

    look()
    for what, value in [(SAVED_EVENTS[row[0]], int(row[1])) for row in trace.rows]:
        if what in ("allocate", "release"):
            other += value if what == "allocate" else -value
        elif what == "hold" and not (value in plan.start_on_host and event < value):
            present.add(("others", value))
        elif what == "let_go":
            present.discard(("others", value))
        elif what == "forget":
            present.discard(("hooks", value))
            on_host.discard(value)
        elif what == "unpack" and value != NOT_SAVED:
            if not is_there(value):
                assert value in on_host, "it is nowhere"
                moved.back.append(value)
            present |= {("others", value), ("hooks", value)}
        elif what == "pack" and value not in packed and value != NOT_SAVED:
            packed.add(value)
            present.add(("hooks", value))
        look()
        if what in ("pack", "unpack"):
            event += 1
            assert plan.hooks[event] == value
            for saved in plan.evict.get(event, ()):
                assert is_there(saved)
                moved.out.append(saved)
                on_host.add(saved)
            for saved in plan.release.get(event, ()):
                assert saved in on_host or ("hooks", saved) not in present
                present.discard(("hooks", saved))
            for saved in plan.prefetch.get(event, ()):
                if not is_there(saved):
                    assert saved in on_host
                    moved.back.append(saved)
                present.add(("hooks", saved))
            look()
    return moved


def agrees(trace: SavedTrace, plan: Plan) -> Moved:
    """The replay, which must find what the ledger says."""
    moved, counted, sizes = replay(trace, plan), ledger(trace, plan), trace.saved[:, 0].tolist()
    assert (moved.peak, moved.host_peak) == (counted.peak_bytes, counted.host_peak_bytes)
    assert (len(moved.out), sum(sizes[one] for one in moved.out)) == (counted.num_out, counted.out_bytes)
    assert (len(moved.back), sum(sizes[one] for one in moved.back)) == (counted.num_in, counted.in_bytes)
    assert len(set(moved.out)) == len(moved.out)  # what is saved does not change: once is enough
    assert counted.live_bytes[counted.peak_row] == counted.peak_bytes
    return moved


@some.composite
def traces(draw: some.DrawFn) -> SavedTrace:
    """A forward pass that saves, and a backward pass that uses, in an order near the reverse one; storages that others
    hold on, that are used twice, or never; other memory between."""
    num = draw(some.integers(1, 6))
    sizes = [draw(some.integers(1, 9)) for _ in range(num)]
    rows: list[Row] = [("allocate", draw(some.integers(0, 5)))]
    held: list[int] = []
    for saved in range(num):
        rows += [("hold", saved), ("pack", saved)]
        held.append(saved)
        if draw(some.booleans()):
            rows.append(("pack", draw(some.sampled_from([NOT_SAVED, saved]))))
        while held and draw(some.booleans()):
            rows.append(("let_go", held.pop(draw(some.integers(0, len(held) - 1)))))
        if draw(some.booleans()):
            extra = draw(some.integers(1, 9))
            rows += [("allocate", extra), ("operator", 1), ("release", extra)]
    keep = held if draw(some.booleans()) else []
    rows += [("let_go", saved) for saved in held if saved not in keep]
    uses = [saved for saved in range(num) for _ in range(draw(some.integers(0, 2)))]
    order = sorted(uses, key=lambda one: (-one + draw(some.integers(-1, 1)), one))
    for place, saved in enumerate(order):
        rows.append(("unpack", saved))
        extra = draw(some.integers(0, 9))
        rows += [("allocate", extra), ("release", extra)]
        if saved not in keep:
            rows.append(("let_go", saved))
        if saved not in order[place + 1 :]:
            rows.append(("forget", saved))
    rows += [("let_go", saved) for saved in keep]
    return made(sizes, rows)


def least_of_all(trace: SavedTrace) -> int:
    """The least peak of all plans that there are: each storage leaves after any of the hook events behind its first
    pack, or never, and again after any of its uses."""
    hooks = [int(value) for what, value, *_ in trace.rows.tolist() if SAVED_EVENTS[what] in ("pack", "unpack")]
    sizes = tuple(trace.saved[:, 0].tolist())
    everywhere = {event: tuple({one for one in hooks[: event + 1] if one != NOT_SAVED}) for event in range(len(hooks))}
    first = {saved: (hooks.index(saved),) for saved in range(len(sizes))}
    evict: dict[int, tuple[int, ...]] = {}
    for saved, (event,) in first.items():
        evict[event] = (*evict.get(event, ()), saved)
    return replay(trace, Plan(sizes, tuple(hooks), evict, everywhere, {})).peak


@given(traces(), some.integers(0, 9), some.integers(0, 60), some.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_every_plan_keeps_below_its_cap_and_the_replay_agrees(
    trace: SavedTrace, above: int, after: int, margin: int
) -> None:
    least = least_cap(trace)
    for plan, cap in (
        (plan_for(trace, above_bytes=above, after_bytes=after), None),
        (plan_for(trace, cap_bytes=least), least),
        (plan_for(trace, cap_bytes=least + margin), least + margin),
        (plan_for(trace, above_bytes=above, after_bytes=after, cap_bytes=least + margin), least + margin),
    ):
        moved = agrees(trace, plan)
        assert cap is None or moved.peak <= cap


@given(traces())
@settings(max_examples=100, deadline=None)
def test_there_is_a_plan_exactly_where_one_exists(trace: SavedTrace) -> None:
    least = least_of_all(trace)  # leaving whenever it can is the least that any plan takes: each row is at its least
    assert least == least_cap(trace)
    with pytest.raises(DoesNotFit, match=r"cannot fit: even with all offloadable tensors on the host .* needs .* of"):
        plan_for(trace, cap_bytes=least - 1)


@given(traces())
@settings(max_examples=60, deadline=None)
def test_nothing_moves_when_it_fits(trace: SavedTrace) -> None:
    peak = ledger(trace, plan_for(trace)).peak_bytes
    assert plan_for(trace).moves_nothing and plan_for(trace, cap_bytes=peak).moves_nothing
    assert not plan_for(trace, cap_bytes=peak).evict and not plan_for(trace, cap_bytes=peak).prefetch


def chain(sizes: list[int]) -> SavedTrace:
    """Each saved in turn, used in reverse; nobody else holds them."""
    rows: list[Row] = []
    for saved in range(len(sizes)):
        rows += [("hold", saved), ("pack", saved), ("let_go", saved)]
    for saved in reversed(range(len(sizes))):
        rows += [("unpack", saved), ("let_go", saved), ("forget", saved)]
    return made(sizes, rows)


def test_the_farthest_next_use_goes_first() -> None:
    trace = chain([4, 4, 4, 4])
    plan = plan_for(trace, cap_bytes=12)
    assert plan.evict == {0: (0,)}  # copied as early as it can be
    assert plan.release == {2: (0,)}  # and gone when the fourth needs its room: behind the third's pack
    assert plan.prefetch == {5: (0,)}  # it comes back at the first hook event behind the fourth's end
    assert ledger(trace, plan).peak_bytes == 12


def belady_moves(order: list[int], sizes: list[int], room: int) -> int:
    """The fewest copies in, by trying everything, where the storages of `order` are asked for one after the other and
    all are on the host at first."""
    best = len(order) + 1
    for choice in itertools.product([False, True], repeat=len(order)):
        kept: set[int] = set()
        copies, fits = 0, True
        for place, (saved, keep) in enumerate(zip(order, choice, strict=True)):
            copies += saved not in kept
            kept.add(saved)
            fits = fits and sum(sizes[one] for one in kept) <= room
            if not keep or saved not in order[place + 1 :]:
                kept.discard(saved)
        if fits:
            best = min(best, copies)
    return best


@given(some.lists(some.integers(0, 3), min_size=2, max_size=9), some.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_storages_of_one_size_come_back_as_seldom_as_can_be(order: list[int], room: int) -> None:
    """Belady's rule is the best one for equal sizes; the search keeps or drops after each use."""
    num = max(order) + 1
    rows: list[Row] = []
    for saved in range(num):
        rows += [("hold", saved), ("pack", saved), ("let_go", saved)]
    rows += [("allocate", 10 - room)]  # nothing is left on the device but what has room behind this
    rows += [("allocate", room), ("release", room)]
    for place, saved in enumerate(order):
        rows += [("unpack", saved), ("let_go", saved)]
        rows += [] if saved in order[place + 1 :] else [("forget", saved)]
    plan = plan_for(made([1] * num, rows), cap_bytes=10)
    assert ledger(made([1] * num, rows), plan).num_in == belady_moves(order, [1] * num, room)


def test_the_rule_of_sizes_begins_behind_so_many_bytes() -> None:
    trace = chain([4, 8, 4, 8, 8, 8])
    by_size = plan_for(trace, above_bytes=5)
    assert sorted(one for group in by_size.release.values() for one in group) == [1, 3, 4]  # the last had no need to
    late = plan_for(trace, above_bytes=5, after_bytes=24)
    assert sorted(one for group in late.release.values() for one in group) == [3, 4]
    assert plan_for(trace, above_bytes=9).moves_nothing


def test_what_others_hold_until_it_is_used_does_not_go_for_its_size() -> None:
    rows: list[Row] = [("hold", 0), ("pack", 0), ("hold", 1), ("pack", 1), ("let_go", 1), ("hold", 2), ("pack", 2)]
    rows += [("let_go", 2), ("unpack", 2), ("let_go", 2), ("forget", 2), ("unpack", 1), ("let_go", 1), ("forget", 1)]
    rows += [("unpack", 0), ("forget", 0), ("let_go", 0)]
    plan = plan_for(made([4, 4, 4], rows), above_bytes=0)
    assert {one for group in plan.release.values() for one in group} == {1}


def test_a_prefetch_heeds_what_a_row_between_takes_before_its_own_releases() -> None:
    rows: list[Row] = [("hold", 0), ("pack", 0), ("let_go", 0), ("hold", 1), ("pack", 1), ("hold", 2), ("pack", 2)]
    rows += [("hold", 3), ("pack", 3), ("let_go", 1), ("let_go", 2), ("let_go", 3)]
    rows += [("unpack", 3), ("let_go", 3), ("forget", 3), ("unpack", 0), ("let_go", 0), ("unpack", 1), ("let_go", 1)]
    rows += [("forget", 1), ("unpack", 0), ("let_go", 0), ("forget", 0)]
    trace = made([2, 1, 1, 1], rows)
    assert replay(trace, plan_for(trace, above_bytes=0, cap_bytes=3)).peak <= 3


def test_the_error_names_the_layer_and_the_bytes() -> None:
    trace = traced(step_of("lenet", 32))
    least = least_cap(trace)
    with pytest.raises(DoesNotFit) as raised:
        plan_for(trace, cap_bytes=least - 1)
    assert str(raised.value) == (
        "cannot fit: even with all offloadable tensors on the host "
        f"pool1 (aten.max_pool2d_with_indices_backward.default) needs {least:,} bytes of {least - 1:,} bytes, "
        f"and the whole step {least:,} bytes: give a smaller --batch-size or more memory"
    )
    with pytest.raises(DoesNotFit, match=r"needs .* MiB of 1\.0 MiB, and the whole step 3\.4 MiB: "):
        plan_for(trace, cap_bytes=1 << 20)


@pytest.mark.parametrize("name", ["lenet", "squeezenet1_1", "Views", "Reused"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_plans_of_models_against_the_replay(name: str, mode: str) -> None:
    trace = traced(step_of(name, 4, 64, mode))  # type: ignore[arg-type]
    most, least = ledger(trace, plan_for(trace)).peak_bytes, least_cap(trace)
    assert least < most
    sizes = sorted({0, 1 << 12, 1 << 16, int(np.median(trace.saved[:, 0]))})
    for cap in (least, (least + most) // 2, most - 1):
        for above in (None, *sizes):
            moved = agrees(trace, plan_for(trace, above_bytes=above, cap_bytes=cap))
            assert moved.peak <= cap
    for above in sizes:
        for after in (0, most // 2):
            agrees(trace, plan_for(trace, above_bytes=above, after_bytes=after))


def test_parameters_leave_without_a_copy_and_are_on_the_host_when_a_step_begins() -> None:
    trace = traced(step_of("squeezenet1_1", 2, 48, "infer"))
    parameters = set(np.flatnonzero(trace.saved[:, 1]).tolist())
    plan = plan_for(trace, above_bytes=0)
    assert plan.start_on_host == parameters
    assert not parameters & {one for group in plan.evict.values() for one in group}
    counted = ledger(trace, plan)
    assert counted.live_bytes[-1] < trace.saved[sorted(parameters), 0].sum()
    assert counted.in_bytes >= trace.saved[sorted(parameters), 0].sum()
