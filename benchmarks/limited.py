"""A script as users write it, which limits its data before it builds its model: the truth of `model fit --how rlimit`.

    python benchmarks/limited.py MODEL train|infer BATCH BYTES SIDE

Three steps of a torchvision model; exit code 1 if there is not enough memory.
"""

import resource
import sys
from pathlib import Path

import torch
import torchvision

NAME, MODE = sys.argv[1:3]
BATCH, LIMIT, SIDE = map(int, sys.argv[3:6])
SIGNS = ("allocate memory", "could not create", "could not execute", "bad_alloc", "Resource temporarily")


def data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024


def steps() -> None:
    images = torch.randn(BATCH, 3, SIDE, SIDE)
    model = torchvision.models.get_model(NAME, weights=None)
    if MODE == "infer":
        model.eval()
        with torch.inference_mode():
            for _ in range(3):
                model(images)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    labels = torch.randint(1000, (BATCH,))
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(images)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
        torch.nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + LIMIT, resource.RLIM_INFINITY))
try:
    steps()
except (RuntimeError, MemoryError) as error:
    if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in SIGNS):
        raise
    print(f"does not fit: {str(error).splitlines()[0][:100]}")
    sys.exit(1)
