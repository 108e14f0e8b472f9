"""A machine that is disturbed, and arms measured on it in turns: step times whose long-run means are known in closed
form. `python -m tests.analysis.machine` prints how often the intervals hold them, the table of docs/validation.md."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from loaderbench.analysis.statistics import blocks_of, draws_of_mean, widths
from loaderbench.cases.arms import FED_ALIKE, Arm

ARMS = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL, Arm.FREE)
"""All take equally long, so that the true ratio of any two is 1, and a cause between them is worth nothing."""
STEP_S = 0.020
TAIL = 30.0
"""How many times as long a step with a slow file takes."""
FAST_S, SLOW_S, SLOWER = 4.0, (0.5, 5.0), (1.5, 2.0)
"""The two states: mean of the exponential time undisturbed, shortest and longest disturbance, and its factors."""
WARM_UP_S = (0.1, 0.4)

Windows = Mapping[Arm, list[NDArray[np.float64]]]
Drawn = Callable[[Windows, int], Mapping[Arm, NDArray[np.float64]]]


@dataclass(frozen=True)
class Machine:
    """What moves the step times."""

    noise: str = "normal"
    """`normal`: of 10 %; `lognormal`: of sigma 1."""
    correlation: float = 0.0
    """Of a step with the one before."""
    by_window: float = 0.0
    """Standard deviation of the speed from window to window, each for itself."""
    by_round: float = 0.0
    """That from round to round, all arms alike."""
    tails: float = 0.0
    """The part of the fed arms' steps that take TAIL times as long."""
    two_states: bool = False

    @property
    def step_s(self) -> float:
        """The long-run step time of the arms fed by the loader."""
        return STEP_S * (1 + (TAIL - 1) * self.tails) / (mean_speed() if self.two_states else 1.0)


def mean_speed() -> float:
    """The long-run speed with two states; that of the undisturbed machine is 1."""
    slow = sum(SLOW_S) / 2 / (sum(SLOW_S) / 2 + FAST_S)
    return 1 - slow + slow * math.log(SLOWER[1] / SLOWER[0]) / (SLOWER[1] - SLOWER[0])


MACHINES: Mapping[str, Machine] = {
    "independent steps": Machine(),
    "steps correlated by 0.8": Machine(correlation=0.8),
    "each window ± 5 %": Machine(correlation=0.5, by_window=0.05),
    "each round ± 5 %": Machine(correlation=0.5, by_round=0.05),
    "lognormal steps, sigma 1": Machine(noise="lognormal"),
    "1 % of steps 30 times longer": Machine(tails=0.01),
    "5 % of steps 30 times longer": Machine(tails=0.05),
    "two states": Machine(correlation=0.5, two_states=True),
    "two states and 1 % tails": Machine(tails=0.01, two_states=True),
}


class _Clock:
    """Wall time against the work that an undisturbed machine does in it."""

    def __init__(self, machine: Machine, random: np.random.Generator) -> None:
        self.now = 0.0
        lengths, speeds = [], []
        slow = bool(random.random() < sum(SLOW_S) / (sum(SLOW_S) + 2 * FAST_S))
        while sum(lengths) < 2_000.0 and machine.two_states:
            lengths.append(random.uniform(*SLOW_S) if slow else random.exponential(FAST_S))
            speeds.append(1 / random.uniform(*SLOWER) if slow else 1.0)
            slow = not slow
        self._wall = np.cumsum([0.0, *lengths, 1e6])
        self._work = np.cumsum([0.0, *np.multiply(lengths, speeds), 1e6])

    def ends(self, work_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """When pieces of work end that are done one after the other from now on."""
        begun = float(np.interp(self.now, self._wall, self._work))
        return np.interp(begun + np.cumsum(work_s), self._work, self._wall)


def _steps(machine: Machine, arm: Arm, number: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Seconds of work of each step."""
    if machine.noise == "lognormal":
        factors = random.lognormal(-0.5, 1.0, number)
    else:
        fresh = random.standard_normal(number) * math.sqrt(1 - machine.correlation**2)
        fresh[0] = random.standard_normal()
        factors = 1 + 0.1 * lfilter([1.0], [1.0, -machine.correlation], fresh)
    if arm in FED_ALIKE:
        factors = factors * np.where(random.random(number) < machine.tails, TAIL, 1.0)
    return np.asarray(STEP_S * factors)


def rounds(machine: Machine, random: np.random.Generator, window_s: float) -> Iterator[dict[Arm, NDArray[np.float64]]]:
    """Round after round: each arm's step times, taken until its window is over."""
    clock = _Clock(machine, random)
    while True:
        of_round = 1 + machine.by_round * random.standard_normal()
        measured = {}
        for arm in ARMS:
            clock.now += random.uniform(*WARM_UP_S)
            factor = of_round * (1 + machine.by_window * random.standard_normal())
            ends = clock.ends(factor * _steps(machine, arm, int(2 * window_s / STEP_S) + 10, random))
            num_steps = max(5, int(np.searchsorted(ends, clock.now + window_s * arm.weight)) + 1)
            measured[arm] = np.diff(ends[:num_steps], prepend=clock.now)
            clock.now = float(ends[min(num_steps, len(ends)) - 1])
        yield measured


def windows(measured: Iterator[dict[Arm, NDArray[np.float64]]], num_rounds: int) -> Windows:
    """The first rounds, by arm."""
    taken = list(islice(measured, num_rounds))
    return {arm: [one[arm] for one in taken] for arm in ARMS}


def drawn(measured: Windows, num_draws: int) -> Mapping[Arm, NDArray[np.float64]]:
    """[num_draws] of each arm's mean step time, as join_arms has them."""
    blocks = {arm: blocks_of([[steps] for steps in of_arm]) for arm, of_arm in measured.items()}
    found = widths(blocks, FED_ALIKE)
    return {
        arm: draws_of_mean(one, stream, num_draws, found[arm])[:, 0] for stream, (arm, one) in enumerate(blocks.items())
    }


@dataclass(frozen=True)
class Held:
    """How often the 95 % intervals held the truth, and how wide they were (median half-width)."""

    mean: float
    ratio: float
    """Of `real` and `ram`."""
    mean_width: float
    ratio_width: float


def held(
    machine: Machine, num_rounds: int, window_s: float, num_trials: int, *, num_draws: int = 400, drawn: Drawn = drawn
) -> Held:
    """The intervals of `real`, and of `real` ÷ `ram`, in simulated runs."""
    random = np.random.default_rng([num_rounds, int(100 * window_s), num_trials])
    found = []
    for _ in range(num_trials):
        draws = drawn(windows(rounds(machine, random, window_s), num_rounds), num_draws)
        low, high = np.percentile(draws[Arm.REAL], [2.5, 97.5])
        least, most = np.percentile(draws[Arm.REAL] / draws[Arm.RAM], [2.5, 97.5])
        inside = low <= machine.step_s <= high, least <= 1 <= most
        found.append((*inside, (high - low) / 2 / machine.step_s, (most - least) / 2))
    table = np.array(found, dtype=np.float64)
    return Held(*table[:, :2].mean(axis=0).tolist(), *np.median(table[:, 2:], axis=0).tolist())


if __name__ == "__main__":
    for rounds_, seconds in ((3, 0.6), (4, 2.1), (6, 1.0), (12, 0.75)):
        print(f"{rounds_} windows of {seconds} s: mean held, ratio held, half-widths of both")
        for name, machine_ in MACHINES.items():
            one = held(machine_, rounds_, seconds, int(sys.argv[1]))
            print(f"{name:<30} {one.mean:6.1%} {one.ratio:6.1%}  ± {one.mean_width:.1%} ± {one.ratio_width:.1%}")
