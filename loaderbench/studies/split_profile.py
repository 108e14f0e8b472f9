"""The times of a split's members: those of the table, and the missing ones measured and added to it.

A member is timed while the others work too, since on one machine they take processors and memory bandwidth from one
another; and alone for the whole batch, which is what a split is held against.
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
from loaderbench.running.members import MemberFailed, Members
from loaderbench.splitting.search import exact, filled, greedy, sizes_to_measure
from loaderbench.splitting.table import extend, read
from loaderbench.studies.kept import Say
from loaderbench.studies.split_plan import SplitPlan

NUM_TURNS = 6
"""Of each size, at least: the range of fewer holds their median with less than 95 %."""
LEAST_S = 0.3
"""Of turns, for each size."""
SPARE = 1.2
"""Time for the turns ÷ what they should take by the first one; the second try takes twice as long, and so on."""
TRIES = 5
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
        found = self.table.points(one.device, self._plan.beside(member, active))
        return {size: seconds for size, seconds in found.items() if size <= batch}

    def used(self) -> tuple[SplitTime, ...]:
        """The table's entries of these members, as they were needed."""
        found = {}
        for active in [*self._companies, *((one,) for one in range(len(self._plan.members)))]:
            for member in active:
                beside = self._plan.beside(member, active)
                for one in self.table.of(self._plan.devices[member], beside).values():
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
        whole batch works alone."""
        batch, every = self._plan.batch_size, range(len(self._plan.members))
        whole = [self._whole(member) for member in every]
        rows = [filled(self.points(member, active), batch) for member in active]
        seconds = [(*row.seconds[:batch], whole[member]) for member, row in zip(active, rows, strict=True)]
        best = exact(seconds, batch)
        parts, between = {}, []
        if best is not None:
            for member, row, times, size in zip(active, rows, seconds, best.sizes, strict=True):
                parts[member] = times[size]
                between += [member] if size < batch and size in row.interpolated else []
        return SplitSearch(
            members=tuple(active),
            greedy=self._of_all(greedy(seconds, batch), active),
            exact=self._of_all(best, active),
            alone=self.fastest(),
            parts_s=tuple(parts.get(member, 0.0) for member in every) if parts else (),
            alone_s=tuple(None if math.isinf(one) else one for one in whole),
            interpolated=tuple(between),
        )

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
        limit = HOPELESS * min(self._whole(member) for member in range(len(self._plan.members)))
        sizes = sizes_to_measure(self._plan.batch_size)
        for number, size in enumerate(sizes, start=1):
            wanted = [
                member
                for member in active
                if self._lacks(member, active, size) and self._is_hopeful(member, active, size, limit)
            ]
            if wanted:
                names = " and ".join(dict.fromkeys(self._plan.devices[member] for member in wanted))
                self._say(f"[time {number} of {len(sizes)}] {size} images on {names}, all at work", False)
                self._measure(active, {member: self._company(member, active, size) for member in active}, wanted)

    def exactly(self, sizes: Sequence[int]) -> None:
        """Measure a split's own sizes, its members at work."""
        active = tuple(member for member, size in enumerate(sizes) if size)
        wanted = [member for member in active if self._lacks(member, active, sizes[member])]
        self._say(f"the sizes of the split: {' + '.join(str(sizes[member]) for member in active)}", False)
        self._measure(active, {member: sizes[member] for member in active}, wanted)

    def does_not_fit(self, member: int, active: Sequence[int], size: int, message: str) -> None:
        """Note that a part does not fit."""
        self._add([self._entry(member, active, size, None, message)], over=True)

    def _lacks(self, member: int, active: Sequence[int], size: int) -> bool:
        if self._plan.members[member].times is not None:
            return False
        place = self._plan.devices[member], self._plan.beside(member, active), size
        is_known = size in self.table.of(place[0], place[1])
        return place not in self._fresh and (not is_known or self._plan.remeasure)

    def _is_hopeful(self, member: int, active: Sequence[int], size: int, limit: float) -> bool:
        return all(seconds <= limit for other, seconds in self.points(member, active).items() if other < size)

    def _company(self, member: int, active: Sequence[int], size: int) -> int:
        """Images for a member at such a size: the size, or the largest below that is known to fit and not to be far
        slower than the others'."""
        points = self.points(member, active)
        limit = HOPELESS * min(self._whole(one) for one in range(len(self._plan.members)))
        if size not in points and self._is_hopeful(member, active, size, limit):
            return size
        return max((other for other, seconds in points.items() if other <= size and seconds <= limit), default=0)

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
                smaller = self._company(member, active, sizes[member] - 1)
                sizes = {**sizes, member: smaller} if smaller else {one: sizes[one] for one in sizes if one != member}
                continue
            entries = [self._entry(member, active, place[2], turns) for place, (member, turns) in found.items()]
            self._add(entries, over=self._plan.remeasure)
            return

    def _turns(
        self, active: Sequence[int], sizes: Mapping[int, int], wanted: Sequence[int]
    ) -> dict[Place, tuple[int, NDArray[np.float64]]]:
        """Place → (a member of it, [num_turns] seconds of its turns). Equal devices in equal company are one place.

        Raises:
            CaseFailed: no turn was done in the time for some.
        """
        first = self._members.warm(sizes)
        places: dict[Place, list[int]] = {}
        for member in wanted:
            place = self._plan.devices[member], self._plan.beside(member, active), sizes[member]
            places.setdefault(place, []).append(member)
        needed = max(math.ceil(NUM_TURNS / len(same)) * first[one] for same in places.values() for one in same)
        seconds = max(LEAST_S, SPARE * needed)
        for _ in range(TRIES):
            turns = self._members.repeat(sizes, seconds)
            found = {place: np.concatenate([turns[one] for one in same]) for place, same in places.items()}
            if all(len(one) >= NUM_TURNS for one in found.values()):
                break
            seconds *= 2
        for (device, _, size), one in found.items():
            if not len(one):
                raise CaseFailed(f"{device} did no turn of {size} images in {seconds:.1f} s: what else runs here?")
        return {place: (places[place][0], one) for place, one in found.items()}

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
        self.table = extend(self._plan.table, self._plan.subject, entries, over=over)
        self._fresh |= {(one.device, one.beside, one.batch_size) for one in entries}
