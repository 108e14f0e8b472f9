"""DALI's iterator on the CPU: samples of Python workers, put together by DALI."""

import numpy as np
import scene
import torch
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator


class Source:
    def __init__(self, arguments):
        self.samples = scene.Samples(arguments)

    def __call__(self, told):
        if told.iteration >= len(self.samples) // scene.BATCH_SIZE:
            raise StopIteration
        values, label, index = self.samples[told.idx_in_epoch]
        return values.numpy(), np.array(label), np.array(index)


@pipeline_def
def batches(source):
    values, label, index = fn.external_source(source=source, num_outputs=3, parallel=True, batch=False)
    return values, label, index


def main():
    arguments = scene.parse()
    model = scene.Model(arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pipe = batches(
        Source(arguments), batch_size=scene.BATCH_SIZE, num_threads=1, device_id=None,
        py_num_workers=max(1, arguments.workers), py_start_method="spawn", prefetch_queue_depth=2,
    )  # fmt: skip
    train = DALIGenericIterator(pipe, ["values", "labels", "indices"], auto_reset=True)
    for _ in range(arguments.epochs):
        for (batch,) in train:
            optimizer.zero_grad()
            model(batch["values"], batch["labels"].flatten(), batch["indices"].flatten())["loss"].backward()
            optimizer.step()
    model.report()


if __name__ == "__main__":
    main()
