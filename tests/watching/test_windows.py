"""Which windows of a watched script are those of its work."""

import pytest

from loaderbench.cases.arms import Arm
from loaderbench.watching.seen import Seen, Source
from loaderbench.watching.windows import EMPTY_NS, Unsettled, segment_of

EMPTY, WORK, STOOD_STILL = EMPTY_NS // 10, 20 * EMPTY_NS, 400 * EMPTY_NS


def kept(*windows: list[int]) -> list[int]:
    """Numbers of the windows that are kept, of those whose steps take so long."""
    seen, now = Seen(Source("DataLoader", "Images", None, 4, 0, 2, "sequential")), 0
    for number, steps in enumerate(windows):
        rows = list[list[int]]()
        for step_ns in steps:
            rows.append([now, now + 1000, now + 1000 + step_ns, 4, -1])
            now += 1000 + step_ns

        def make(number: int = number, rows: list[list[int]] = rows):  # type: ignore[no-untyped-def]
            return segment_of(
                Arm.REAL, number, 1, rows, None, None, None, on_device=False, first_batch=0, wait_cpu_s=None,
                looks=None,
            )  # fmt: skip

        Unsettled(seen, rows, None, make, on_device=False).become_segment()
    return [one.round for one in seen.segments]


SKIPS, WORKS, STOOD = [EMPTY] * 40, [WORK] * 40, [*[EMPTY] * 39, STOOD_STILL]


@pytest.mark.parametrize(
    ("windows", "those_kept"),
    [
        ([WORKS, WORKS, WORKS], [0, 1, 2]),
        ([SKIPS, SKIPS, WORKS, WORKS, WORKS], [3, 4]),  # the third may have begun before the work did
        ([SKIPS, SKIPS], [0, 1]),
        ([SKIPS, STOOD, SKIPS], [0, 1, 2]),
        ([SKIPS, STOOD], [0, 1]),
        ([SKIPS, STOOD, STOOD, STOOD], [2, 3]),  # a loaded machine
        ([STOOD], [0]),
    ],
)
def test_a_step_in_which_the_machine_stood_still_leaves_the_script_with_a_result(
    windows: list[list[int]], those_kept: list[int]
) -> None:
    assert kept(*windows) == those_kept
