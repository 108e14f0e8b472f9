"""`loaderbench model split`: one batch over several devices, by their measured times, against the fastest one alone.

docs/model-split.md defines every figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model_split import deviation_of, tolerance_of
from loaderbench.cases.inputs import image_side
from loaderbench.devices.select import profile_link
from loaderbench.errors import CaseFailed, ConfigError, LoaderbenchError, UnavailableError
from loaderbench.findings.table import words
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_split import (
    DroppedMember,
    KnownTimes,
    MemberFacts,
    MovedPart,
    OutputCheck,
    SplitFacts,
    SplitSearch,
    SplitTurns,
)
from loaderbench.recording.split_times import Split
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import MemberRequest
from loaderbench.running.members import MemberFailed, Members, Part, Together
from loaderbench.samplers.cpu import Stolen
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.split_plan import MemberPlan, SplitPlan
from loaderbench.studies.split_profile import Profile

T = TypeVar("T")
TURNS_S = 4.0
"""Turns go on until both kinds together took this long, where their number was not asked for: ten turns of a small
model are over within a second, in which a shared processor's speed may be half of what it is on average."""
MOST_TURNS = 200
MOST_LEFT_OUT = 2
"""Turns of both that are left out and done again, for each that was asked for."""
MOST_MENDED = 3
"""Searches after a split's own sizes were measured, since they lay between measured ones."""


class SplitStudy(KeptStudy):
    """One split. What was measured is kept and stored, however `run` ends."""

    keeps_empty = False

    def __init__(self, plan: SplitPlan, store: Store) -> None:
        self._plan = plan
        super().__init__(store.new_study("model_split", [plan.model, str(plan.batch_size)]))
        self._facts = SplitFacts(
            model=plan.model,
            precision=plan.precision,
            input_size=plan.input_size,
            channels=plan.channels,
            inputs=plan.inputs,
            batch_size=plan.batch_size,
            seed=plan.seed,
            environment=plan.environment,
            table=f"{plan.table.parent.name}/{plan.table.name}",
            members=tuple(MemberFacts(one.device, None, _known(one, 0)) for one in plan.members),
        )
        self._profile: Profile | None = None
        self._stolen = Stolen()
        self._split: list[Together] = []
        self._alone: list[Together] = []

    def facts(self) -> SplitFacts:
        """What is known so far."""
        profile = self._profile
        if profile is None:
            return self._facts
        return replace(self._facts, times=profile.used(), num_measured=profile.num_measured, turns=self._turns())

    @property
    def begun(self) -> bool:
        return self._profile is not None

    @property
    def kept(self) -> str:
        num_turns = max(len(self._split), len(self._alone))
        return f"{self.num_measured} times and {num_turns} turns were measured and are kept"

    @property
    def num_measured(self) -> int:
        """Times of the table that this study measured."""
        return 0 if self._profile is None else self._profile.num_measured

    @property
    def failed(self) -> bool:
        """Whether the outputs are not those of one device."""
        check = self._facts.check
        return check is not None and not check.deviation <= check.tolerance

    # -- the whole -------------------------------------------------------------------------------------------

    def run(self, say: Say) -> None:
        """Measure what the table lacks, search, then run the split and the fastest device alone, in turns.

        Raises:
            ConfigError: the model, its input or the table is wrong.
            UnavailableError: a device does not start.
            CaseFailed: a member ended, nothing fits, or the results cannot be written.
        """
        plan = self._plan
        self._folder.begin()
        requests = [MemberRequest(member.step, plan.seed) for member in plan.members]
        try:
            with Members(requests, self._log, lambda number, message: None) as members:
                say(f"starting {' and '.join(plan.devices)}", False)
                self._open(members, say)
                self._profile = Profile(self._plan, members, say)
                self._stolen.begin()
                self._profile.alone()
                self._work(members, self._profile, say)
        except MemberFailed as error:
            raise self._ended(error) from error
        except CaseFailed as error:
            raise self._with(error) from error
        finally:
            if not self.begun and self._facts.failure is None:  # there is nothing but an empty log
                self._folder.discard()
        self._facts = replace(self._facts, interrupted=False)

    def _open(self, members: Members, say: Say) -> None:
        """Start the devices. One that cannot hold the model is left out, and its part goes to the others.

        Raises:
            CaseFailed: none can hold it.
            MemberFailed: a device does not start.
        """
        while True:
            try:
                found = members.open()
            except MemberFailed as error:
                if not error.cannot_hold_model:
                    raise
                self._leave_out(members, error, say)
                continue
            known = [replace(one, facts=facts) for one, facts in zip(self._facts.members, found, strict=True)]
            self._facts = replace(self._facts, members=tuple(known))
            return

    def _leave_out(self, members: Members, error: MemberFailed, say: Say) -> None:
        """Go on without a device that cannot hold the model. Raises CaseFailed where it is the last one."""
        number, plan = error.number, self._plan
        dropped = (*self._facts.dropped, DroppedMember(plan.devices[number], str(error)))
        if len(plan.members) == 1:
            whose = "; ".join(f"{one.device}: {one.message}" for one in dropped)
            raise CaseFailed(f"none of these devices can hold {plan.model} ({whose})")
        say(f"{plan.devices[number]} cannot hold {plan.model}: {error}; the others share the batch", True)
        members.leave_out(number)
        self._plan = replace(plan, members=_without(plan.members, number))
        self._facts = replace(self._facts, members=_without(self._facts.members, number), dropped=dropped)

    def _ended(self, error: MemberFailed) -> LoaderbenchError:
        """The error to raise where a member cannot go on."""
        cause = error.cause.error
        if isinstance(cause, ConfigError):  # of the model or its input, the same for all
            return cause
        name = f"{self._plan.devices[error.number]} (member {error.number + 1} of {len(self._plan.members)})"
        if isinstance(cause, UnavailableError):
            return UnavailableError(f"{name}: {cause}")
        kept = f"; {self._plan.table} keeps the times measured so far" if self.num_measured else ""
        return self._with(CaseFailed(f"{name}: {error}{kept}"))

    def _with(self, error: CaseFailed) -> CaseFailed:
        """The error, once it is stored."""
        self._facts = replace(self._facts, failure=Failure(type(error).__name__, str(error)))
        if self.begun:
            self.store()
        return error

    def _work(self, members: Members, profile: Profile, say: Say) -> None:
        """Search and run, until a split's parts all fit."""
        while True:
            search, chosen = self._search(profile, say)
            self._facts = replace(self._facts, chosen=chosen, members=self._with_labels(chosen))
            self._facts = replace(self._facts, num_left_out=0, check=None, no_check=None)
            if self._facts.stolen_profile_fraction is None:  # a search after a part moved counts no turns to the times
                self._facts = replace(self._facts, stolen_profile_fraction=self._stolen.fraction())
            self._split, self._alone = [], []
            self.store()
            try:
                self._check(members, search, chosen)
                self._take_turns(members, search, chosen, say)
                return
            except MemberFailed as error:
                if not error.lacks_memory:
                    raise
                self._move(profile, error, say)

    def _move(self, profile: Profile, error: MemberFailed, say: Say) -> None:
        """A part that fitted when it was measured does not any more: the others get some of it, or all."""
        profile.does_not_fit(error.number, error.members, error.size, str(error))
        moved = MovedPart(error.number, error.size, str(error))
        self._facts = replace(self._facts, moved=(*self._facts.moved, moved))
        say(f"{self._plan.devices[error.number]}: {error}; the batch is split anew", True)

    def _with_labels(self, chosen: Split) -> tuple[MemberFacts, ...]:
        """The members' facts, with where the times of their own parts come from."""
        named = zip(self._plan.members, self._facts.members, chosen.sizes, strict=True)
        return tuple(replace(facts, known=_known(member, size)) for member, facts, size in named)

    # -- the search ------------------------------------------------------------------------------------------

    def _search(self, profile: Profile, say: Say) -> tuple[SplitSearch, Split]:
        """The last search, and what it says is to be run. Raises CaseFailed where nothing fits."""
        active: tuple[int, ...] = tuple(range(len(self._plan.members)))
        mended = 0
        while True:
            profile.together(active)
            search = profile.search(active)
            self._facts = replace(self._facts, searches=(*self._facts.searches, search))
            chosen = search.to_run
            if chosen is None:
                raise CaseFailed(
                    f"these devices cannot hold batch {self._plan.batch_size} of {self._plan.model}, whole or split: "
                    "give a smaller --batch-size"
                )
            used = chosen.members
            if len(used) == 1:
                break
            if used != active:  # times beside fewer members are others
                active = used
            elif search.interpolated and mended < MOST_MENDED:
                mended += 1
                profile.exactly(chosen.sizes)
            else:
                break
        parts = " + ".join(f"{size} on {device}" for size, device in self._named(chosen) if size)
        say(f"{parts}: {chosen.finish_s * 1e3:.4g} ms predicted", True)
        return search, chosen

    def _named(self, split: Split) -> list[tuple[int, str]]:
        return list(zip(split.sizes, self._plan.devices, strict=True))

    # -- turns -----------------------------------------------------------------------------------------------

    def _take_turns(self, members: Members, search: SplitSearch, chosen: Split, say: Say) -> None:
        """The split and the fastest member alone, one after the other."""
        parts, alone = _parts_of(chosen), None if search.alone is None else _parts_of(search.alone)
        if parts == alone:
            parts = {}
        self._stolen.begin()
        number, sum_s = 0, 0.0
        while number < self._plan.num_turns or (self._plan.may_go_on and sum_s < TURNS_S and number < MOST_TURNS):
            number += 1
            say(
                f"[turn {number} of {max(number, self._plan.num_turns)}] the split, then the fastest device alone",
                False,
            )
            # Neighbours count together or not at all: a machine that makes one late meets the other, too.
            taken = [(kept, members.run(asked, again=0)) for kept, asked in ((self._split, parts), (self._alone, alone))
                     if asked]  # fmt: skip
            sum_s += sum(turn.seconds for _, turn in taken)
            if any(turn.is_late for _, turn in taken):
                self._facts = replace(self._facts, num_left_out=self._facts.num_left_out + 1)
                number -= self._facts.num_left_out <= MOST_LEFT_OUT * self._plan.num_turns
            else:
                for kept, turn in taken:
                    kept.append(turn)
            self._facts = replace(self._facts, stolen_turns_fraction=self._stolen.fraction())
        self.store()

    def _turns(self) -> SplitTurns | None:
        """The turns as arrays."""
        chosen, search = self._facts.chosen, self._facts.searches[-1] if self._facts.searches else None
        if chosen is None or search is None or not (self._split or self._alone):
            return None
        every = [*self._split, *self._alone]
        zero = min(turn.start_ns for turn in every)
        alone = None if search.alone is None else next(iter(_parts_of(search.alone)))
        return SplitTurns(
            sizes=chosen.sizes,
            alone=alone,
            split_start_ns=np.array([turn.start_ns - zero for turn in self._split], dtype=np.int64),
            split_ns=self._stamps(self._split, range(len(chosen.sizes)), zero),
            alone_start_ns=np.array([turn.start_ns - zero for turn in self._alone], dtype=np.int64),
            alone_ns=self._stamps(self._alone, [] if alone is None else [alone], zero).reshape(-1, 2),
            num_late=sum(turn.num_late for turn in every),
        )

    @staticmethod
    def _stamps(turns: Sequence[Together], members: Sequence[int], zero: int) -> NDArray[np.int64]:
        """[num_turns, num_members, 2]"""
        return np.array(
            [
                [
                    (turn.parts[one].begin_ns - zero, turn.parts[one].end_ns - zero) if one in turn.parts else (-1, -1)
                    for one in members
                ]
                for turn in turns
            ],
            dtype=np.int64,
        ).reshape(len(turns), len(members), 2)

    # -- outputs ---------------------------------------------------------------------------------------------

    def _check(self, members: Members, search: SplitSearch, chosen: Split) -> None:
        """Run it once, unmeasured, and hold the outputs against those of the fastest member that computes."""
        parts = _parts_of(chosen)
        together = members.run(parts, with_output=True)
        whole = {
            member: seconds
            for member, seconds in enumerate(search.alone_s)
            if seconds is not None and self._plan.members[member].computes
        }
        outputs = {one: run.output for one, run in together.parts.items() if run.output is not None}
        if not outputs:
            self._facts = replace(self._facts, no_check=words("no_outputs", {}))
            return
        if not whole:
            self._facts = replace(self._facts, no_check=words("no_reference", {}))
            return
        reference = min(whole, key=whole.__getitem__)
        if [*parts] == [reference]:
            self._facts = replace(self._facts, no_check=words("one_device_alone", {}))
            return
        batch = self._plan.batch_size
        found = members.run({reference: (0, batch)}, with_output=True).parts[reference].output
        assert found is not None
        self._facts = replace(self._facts, check=self._checked(parts, outputs, reference, found))

    def _checked(
        self,
        parts: dict[int, Part],
        outputs: dict[int, NDArray[np.float32]],
        reference: int,
        whole: NDArray[np.float32],
    ) -> OutputCheck:
        rows = np.concatenate(
            [np.arange(first, first + size) for one, (first, size) in parts.items() if one in outputs]
        )
        together = np.concatenate([outputs[one] for one in parts if one in outputs])
        deviation = deviation_of(together, whole[rows])
        return OutputCheck(
            reference=reference,
            num_images=len(rows),
            deviation=float(np.max(deviation)),  # NaN where an output is none
            tolerance=tolerance_of(self._plan.precision),
            neighbours=float(np.median(deviation_of(whole[1:], whole[:-1]))) if len(whole) > 1 else None,
        )


def _without(those: tuple[T, ...], number: int) -> tuple[T, ...]:
    return those[:number] + those[number + 1 :]


def _known(member: MemberPlan, size: int) -> KnownTimes | None:
    """Where the time of a part of this size comes from; of the whole batch for 0. None: it is measured."""
    if member.times is None:
        return None
    one = member.times.period_ms(size or member.step.batch_size, image_side(member.step))
    link, source = profile_link(member.device)
    known = member.times.period_ms(member.times.largest_batch)
    made_of = "" if one.label == known.label else f", {known.label}: {known.source}"
    return KnownTimes(one.label, f"{one.source}{made_of}; link: {source}", link)


def _parts_of(split: Split) -> dict[int, Part]:
    """Member → its part, in the order of the images."""
    found, first = {}, 0
    for member, size in enumerate(split.sizes):
        if size:
            found[member] = first, size
        first += size
    return found
