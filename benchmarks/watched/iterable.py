"""A data set without an order of its own: each worker yields its part."""

import scene
import torch


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, arguments):
        self.samples = scene.Samples(arguments)

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, lanes = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, len(self.samples), lanes):
            yield self.samples[index]


arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, Stream(arguments), shuffle=False)
for _ in range(arguments.epochs):
    for batch in train:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
model.report()
