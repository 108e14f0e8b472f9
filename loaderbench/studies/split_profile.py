"""The times of a split's members: those of the table, and the missing ones measured and added to it.

A member is timed while the others work too, since on one machine they take processors and memory bandwidth from one
another; and alone for the whole batch, which is what a split is held against. Its turns are those of a split
(`Members.run`): right after a warm one, from a common start, each member on its own images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model_split import median_of
from loaderbench.errors import CaseFailed
from loaderbench.recording.model_split import SplitSearch
from loaderbench.recording.split_times import Split, SplitTime
from loaderbench.running.members import MemberFailed, Members, Part, Together
from loaderbench.splitting.search import exact, filled, greedy, sizes_to_measure
from loaderbench.splitting.table import extend, read
from loaderbench.studies.kept import Say
from loaderbench.studies.split_plan import SplitPlan

NUM_TURNS, MOST_TURNS = 6, 12
"""Of each size: the range of fewer than 6 holds their median with less than 95 %; more than that until LEAST_S."""
LEAST_S = 0.3
"""Of turns, for each size."""
MOST_SPOILT = 12
"""Turns of a size that began late; with more of them it is not timed."""
BUSY = 0.9
"""Part of the last member's time for which the others go on: equal ones, which differ by a few percent, do one turn."""
HOPELESS = 3.0
"""Times what the fastest device takes for the whole batch: a part that takes longer is in no split, nor on the greedy
search's way, and larger ones are not measured."""

Place = tuple[str, tuple[str, ...], int]
"""(device, what works beside it, images)"""


class Profile:
    """What is known of the members' times.

    All methods raise MemberFailed where a member ends, and ConfigError where the table cannot be read or written.
    """

    def __init__(self, plan: SplitPlan, members: Members, say: Say) -> None:
        self._plan, self._members, self._say = plan, members, say
        self.table = read(plan.table, plan.subject)
        self._fresh: set[Place] = set()
        """Measured in this study."""
        self._own: dict[Place, SplitTime] = {}
        """Of this study alone: another member rested meanwhile, or had fewer images."""
        self._companies: list[tuple[int, ...]] = []

    @property
    def num_measured(self) -> int:
        return len(self._fresh)

    # -- what is known ---------------------------------------------------------------------------------------

    def points(self, member: int, active: Sequence[int]) -> dict[int, float]:
        """Images → seconds of a member where these are active; infinite where they do not fit."""
        one, batch = self._plan.members[member], self._plan.batch_size
        if one.times is not None:
            return {size: one.known_seconds(size) for size in range(1, batch + 1)}
        found = self._entries(member, active)
        return {size: math.inf if one.seconds is None else one.seconds for size, one in found.items() if size <= batch}

    def _entries(self, member: int, active: Sequence[int]) -> dict[int, SplitTime]:
        """Images → time of a member where these are active; with `--remeasure` only what was measured in this study."""
        device, beside = self._plan.devices[member], self._plan.beside(member, active)
        found = self.table.of(device, beside)
        if self._plan.remeasure:
            found = {size: one for size, one in found.items() if (device, beside, size) in self._fresh}
        own = {place[2]: one for place, one in self._own.items() if place[:2] == (device, beside)}
        return {**found, **own}

    def _bounds(self, member: int, active: Sequence[int]) -> dict[int, tuple[float, float]]:
        """As `points`, the ends of each time's interval; the time itself where it has none."""
        found = {size: (seconds, seconds) for size, seconds in self.points(member, active).items()}
        for size, one in self._entries(member, active).items():
            if size in found and one.low is not None and one.high is not None:
                found[size] = one.low, one.high
        return found

    def used(self) -> tuple[SplitTime, ...]:
        """The table's entries of these members, as they were needed."""
        found = {}
        for active in [*self._companies, *((one,) for one in range(len(self._plan.members)))]:
            for member in active:
                for one in self._entries(member, active).values():
                    if one.batch_size <= self._plan.batch_size:
                        found[one.device, one.beside, one.batch_size] = one
        return tuple(found[key] for key in sorted(found))

    def _whole(self, member: int) -> float:
        """Seconds of the member alone for the whole batch."""
        return self.points(member, (member,)).get(self._plan.batch_size, math.inf)

    def fastest(self) -> Split | None:
        """The member that does the whole batch first, alone; None where it fits on none."""
        seconds = [self._whole(member) for member in range(len(self._plan.members))]
        best = min(range(len(seconds)), key=seconds.__getitem__)
        if math.isinf(seconds[best]):
            return None
        sizes = tuple(self._plan.batch_size if one == best else 0 for one in range(len(seconds)))
        return Split(sizes, seconds[best])

    def search(self, active: Sequence[int]) -> SplitSearch:
        """What greedy and exact search make of the times of these members, each beside the others; a member with the
        whole batch works alone. Where that is the answer, but by the intervals of the times a split may end before
        it, that split is what is to be run."""
        batch, every = self._plan.batch_size, range(len(self._plan.members))
        whole = [self._whole(member) for member in every]
        rows = [filled(self.points(member, active), batch) for member in active]
        seconds = [(*row.seconds[:batch], whole[member]) for member, row in zip(active, rows, strict=True)]
        best = exact(seconds, batch)
        to_run = self._rival(active, [row.seconds for row in rows], best) or best
        parts, between = {}, []
        if to_run is not None:
            for member, row, times, size in zip(active, rows, seconds, to_run.sizes, strict=True):
                parts[member] = times[size]
                between += [member] if size < batch and size in row.interpolated else []
        return SplitSearch(
            members=tuple(active),
            greedy=self._of_all(greedy(seconds, batch), active),
            exact=self._of_all(best, active),
            to_run=self._of_all(to_run, active),
            alone=self.fastest(),
            parts_s=tuple(parts.get(member, 0.0) for member in every) if parts else (),
            alone_s=tuple(None if math.isinf(one) else one for one in whole),
            interpolated=tuple(between),
        )

    def _rival(self, active: Sequence[int], rows: Sequence[Sequence[float]], best: Split | None) -> Split | None:
        """Where one member with the whole batch is best: the best split over several whose time, by the intervals of
        what is known, may be less. `rows`: [members, batch + 1] seconds beside the others."""
        batch = self._plan.batch_size
        if best is None or batch not in best.sizes:
            return None
        found = exact([(*row[:batch], math.inf) for row in rows], batch)
        if found is None:
            return None
        least = 0.0
        for member, size in zip(active, found.sizes, strict=True):
            lows = {one: low for one, (low, _) in self._bounds(member, active).items()}
            least = max(least, filled(lows, batch).seconds[size])
        alone = active[best.sizes.index(batch)]
        return found if least <= self._bounds(alone, (alone,))[batch][1] else None

    def _of_all(self, split: Split | None, active: Sequence[int]) -> Split | None:
        """The split with sizes of all members."""
        if split is None:
            return None
        sizes = dict(zip(active, split.sizes, strict=True))
        return Split(tuple(sizes.get(member, 0) for member in range(len(self._plan.members))), split.finish_s)

    # -- measuring -------------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Measure each member with the whole batch, the others at rest."""
        batch = self._plan.batch_size
        for member in range(len(self._plan.members)):
            if self._lacks(member, (member,), batch):
                self._say(f"batch {batch} on {self._plan.devices[member]} alone", False)
                self._measure((member,), {member: batch}, [member])

    def together(self, active: Sequence[int]) -> None:
        """Measure the sizes that the search needs, all of these members at work."""
        self._companies.append(tuple(active))
        limit = self._limit()
        sizes = sizes_to_measure(self._plan.batch_size)
        for number, size in enumerate(sizes, start=1):
            wanted = [
                member
                for member in active
                if self._lacks(member, active, size) and self._is_hopeful(member, active, size, limit)
            ]
            if wanted:
                names = " and ".join(dict.fromkeys(self._plan.devices[member] for member in wanted))
                self._say(f"[time {number} of {len(sizes)}] {size} images on {names}, all at the same time", False)
                self._measure(active, {member: self._company(member, active, size) for member in active}, wanted)

    def exactly(self, sizes: Sequence[int]) -> None:
        """Measure a split's own sizes, its members at work."""
        active = tuple(member for member, size in enumerate(sizes) if size)
        wanted = [member for member in active if self._lacks(member, active, sizes[member])]
        self._say(f"the sizes of the split: {' + '.join(str(sizes[member]) for member in active)}", False)
        self._measure(active, {member: sizes[member] for member in active}, wanted)

    def does_not_fit(self, member: int, active: Sequence[int], size: int, message: str) -> None:
        """Note that a part does not fit."""
        self._own.pop((self._plan.devices[member], self._plan.beside(member, active), size), None)
        self._add([self._entry(member, active, size, None, message)], over=True)

    def _lacks(self, member: int, active: Sequence[int], size: int) -> bool:
        if self._plan.members[member].times is not None:
            return False
        return size not in self._entries(member, active)

    def _is_hopeful(self, member: int, active: Sequence[int], size: int, limit: float) -> bool:
        """Whether all smaller ones fit, and none takes far longer than any split."""
        smaller = (seconds for other, seconds in self.points(member, active).items() if other < size)
        return all(math.isfinite(seconds) and seconds <= limit for seconds in smaller)

    def _company(self, member: int, active: Sequence[int], size: int) -> int:
        """Images for a member at such a size: the size, or else as `_known_to_fit`."""
        if size not in self.points(member, active) and self._is_hopeful(member, active, size, self._limit()):
            return size
        return self._known_to_fit(member, active, size)

    def _known_to_fit(self, member: int, active: Sequence[int], most: int) -> int:
        """The largest size up to `most` that is known to fit, and not to be far slower than the others'."""
        limit, points = self._limit(), self.points(member, active)
        fitting = (size for size, seconds in points.items() if math.isfinite(seconds) and seconds <= limit)
        return max((size for size in fitting if size <= most), default=0)

    def _limit(self) -> float:
        """Seconds that no part of a split takes; infinite where the whole batch fits on no device."""
        return HOPELESS * min(self._whole(member) for member in range(len(self._plan.members)))

    def _measure(self, active: Sequence[int], sizes: Mapping[int, int], wanted: Sequence[int]) -> None:
        """Time the wanted members at these sizes, all at work, and add what was found to the table. A member without
        an image rests."""
        sizes, wanted = {member: size for member, size in sizes.items() if size}, [*wanted]
        while wanted:
            try:
                found = self._turns(active, sizes, wanted)
            except MemberFailed as error:
                if not error.lacks_memory:
                    raise
                member, message = error.number, str(error)
                self.does_not_fit(member, active, sizes[member], message)
                self._say(f"{self._plan.devices[member]}: {message}", True)
                wanted = [one for one in wanted if one != member]
                smaller = self._known_to_fit(member, active, sizes[member] - 1)
                sizes = {**sizes, member: smaller} if smaller else {one: sizes[one] for one in sizes if one != member}
                continue
            kept, own = list[SplitTime](), list[SplitTime]()
            for (_, _, size), (member, turns) in found.items():
                entry = self._entry(member, active, size, turns)
                others = (sizes.get(other, 0) for other in active if other != member)
                (kept if all(one >= size for one in others) else own).append(entry)
            self._own |= {_place(one): one for one in own}
            self._fresh |= {_place(one) for one in own}
            self._add(kept, over=self._plan.remeasure)
            return

    def _turns(
        self, active: Sequence[int], sizes: Mapping[int, int], wanted: Sequence[int]
    ) -> dict[Place, tuple[int, NDArray[np.float64]]]:
        """Place → (a member of it, [num_turns] seconds from the common start to its end). Equal devices in equal
        company are one place, whose end is that of the last: they work at the same time, so a turn tells one time.

        Raises:
            CaseFailed: fewer than NUM_TURNS turns began together.
        """
        parts = self._parts(sizes)
        busy_s = BUSY * max(self._members.warm(parts).values())
        turns: list[Together] = []
        num_tries, sum_s = 0, 0.0
        while len(turns) < NUM_TURNS or (sum_s < LEAST_S and len(turns) < MOST_TURNS):
            turn = self._members.run(parts, busy_s=busy_s)
            num_tries += 1
            if not turn.is_late:
                turns.append(turn)
                sum_s += turn.seconds
            elif num_tries - len(turns) > MOST_SPOILT:
                if len(turns) >= NUM_TURNS:
                    break
                names = " and ".join(dict.fromkeys(self._plan.devices[member] for member in sizes))
                raise CaseFailed(
                    f"{names}: {len(turns)} of {num_tries} turns started together, and {NUM_TURNS} are needed: stop "
                    "other programs"
                )
        places: dict[Place, list[int]] = {}
        for member in wanted:
            place = self._plan.devices[member], self._plan.beside(member, active), sizes[member]
            places.setdefault(place, []).append(member)
        return {
            place: (same[0], np.array([max(turn.part_seconds(one) for one in same) for turn in turns]))
            for place, same in places.items()
        }

    def _parts(self, sizes: Mapping[int, int]) -> dict[int, Part]:
        """Each member's images: one after the other's, as in a split; within the batch, so that some may be shared."""
        parts, first = {}, 0
        for member, size in sizes.items():
            parts[member] = min(first, self._plan.batch_size - size), size
            first += size
        return parts

    def _entry(
        self,
        member: int,
        active: Sequence[int],
        size: int,
        turns: NDArray[np.float64] | None,
        message: str | None = None,
    ) -> SplitTime:
        device, beside = self._plan.devices[member], self._plan.beside(member, active)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        if turns is None:
            return SplitTime(
                device, size, None, beside=beside, outcome="out_of_memory", message=message, date=date
            )  # fmt: skip
        middle = median_of(turns)
        return SplitTime(device, size, middle.value, middle.low, middle.high, len(turns), beside, date=date)

    def _add(self, entries: Sequence[SplitTime], *, over: bool) -> None:
        if entries:
            self.table = extend(self._plan.table, self._plan.subject, entries, over=over)
            self._fresh |= {_place(one) for one in entries}


def _place(entry: SplitTime) -> Place:
    return entry.device, entry.beside, entry.batch_size
