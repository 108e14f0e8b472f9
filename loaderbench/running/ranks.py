"""Which rank of a launch this process is, and how far its clock stands from rank 0's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loaderbench.cases.options import whole_number
from loaderbench.errors import ConfigError
from loaderbench.printable import short
from loaderbench.recording.rank_place import RankClock

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    # Before Slurm: mpirun within a Slurm allocation sets its own, and Slurm's then name the daemons' step.
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    # The step's number of tasks, not the job's (SLURM_NTASKS): a batch script is one process of a job of many tasks.
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
"""The variables of rank, number of ranks and rank on the node, by launcher, in the order in which they are read."""
EXCHANGES = 64
"""Round trips a rank: the one with the shortest delay counts."""


@dataclass(frozen=True)
class Rank:
    """One process of a launch. `rank` counts over all nodes, `local_rank` over this node's."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str


def rank_of(variables: Mapping[str, str]) -> Rank | None:
    """The rank that a launcher's environment variables name; None where no launcher set all three.

    Raises ConfigError where they are no ranks (not numbers, or out of range).
    """
    for launcher, names in LAUNCHERS.items():
        if any(name not in variables for name in names):
            continue
        stated = ", ".join(f"{name}={short(variables[name])}" for name in names)
        try:
            rank, world_size, local_rank = (whole_number(variables[name]) for name in names)
        except ValueError:
            raise ConfigError(f"{launcher}'s variables are not whole numbers: {stated}") from None
        if not (0 <= rank < world_size and 0 <= local_rank < world_size):
            raise ConfigError(f"{launcher}'s variables give no valid rank: {stated}")
        return Rank(rank, world_size, local_rank, launcher)
    return None


def offset_of(exchanges: list[tuple[int, int, int, int]]) -> RankClock:
    """The offset from round trips (sent, received there, answered there, received; ns): RFC 5905, section 8.

    The trip with the shortest delay counts. Half its delay bounds the error, however unequal the two ways are.
    """
    delay_ns, offset_ns = min(
        ((back - sent) - (answered - there), ((there - sent) + (answered - back)) / 2)
        for sent, there, answered, back in exchanges
    )
    return RankClock(offset_ns / 1e9, delay_ns / 2e9, exchanges[-1][3])


def align_clock(clock: Callable[[], int] = time.perf_counter_ns) -> RankClock:
    """This rank's offset, by round trips with rank 0 over the default process group (one that has CPU tensors: gloo).

    Every rank calls it. Rank 0 answers the others in turn, so it takes EXCHANGES round trips for each of them.
    `clock`: nanoseconds.
    """
    import torch
    from torch import distributed

    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    question = torch.zeros(1, dtype=torch.int64)
    answer = torch.zeros(2, dtype=torch.int64)
    if rank == 0:
        for other in range(1, ranks):
            for _ in range(EXCHANGES):
                distributed.recv(question, other)
                answer[0] = clock()
                answer[1] = clock()
                distributed.send(answer, other)
        return RankClock(0.0, 0.0, clock())
    exchanges = []
    for _ in range(EXCHANGES):
        sent = clock()
        distributed.send(question, 0)
        distributed.recv(answer, 0)
        back = clock()
        exchanges.append((sent, int(answer[0]), int(answer[1]), back))
    return offset_of(exchanges)
