"""A DataLoader's workers and the loop that takes their batches, followed batch by batch.

Batch k is made by worker k mod N, which does one after the other in the order asked for. P batches a worker are asked
for at the start, and one more whenever one is taken, N · P behind it; they are taken in order (PyTorch 2.15,
`_MultiProcessingDataLoaderIter`: `_try_put_index` and `_next_data`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
SETTLED = 0.25
"""Of the batches, the first part is left out: the queue fills."""


def step_seconds(making: Times, step: Times, workers: int, prefetch: int) -> Times:
    """[D] mean seconds a step.

    making: [D, K] seconds that batch k takes its worker
    step: [D, K] seconds that the loop works on it
    workers: 0: the loop makes its batches itself
    """
    if workers == 0:
        return np.asarray((making + step).mean(axis=1))
    draws, num = making.shape
    depth = workers * max(1, prefetch)
    ready, taken = np.zeros((num, draws)), np.zeros((num, draws))
    asks = np.zeros(draws)
    for k in range(num):
        start = ready[k - workers] if k >= workers else np.zeros(draws)
        if k >= depth:
            start = np.maximum(start, taken[k - depth])
        ready[k] = start + making[:, k]
        taken[k] = np.maximum(asks, ready[k])
        asks = taken[k] + step[:, k]
    first = int(num * SETTLED)
    return np.asarray((taken[-1] - taken[first]) / (num - 1 - first))
