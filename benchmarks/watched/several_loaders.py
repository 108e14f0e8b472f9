"""Training and, after each epoch, validation, each with a loader of its own."""

import scene
import torch

arguments = scene.parse()
model = scene.Model(arguments)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = scene.loader(arguments, scene.Samples(arguments))
held_out = scene.Samples(arguments, "validation", num=arguments.epoch_steps * scene.BATCH_SIZE // 4)
validation = scene.loader(arguments, held_out, shuffle=False)
for _ in range(arguments.epochs):
    model.train()
    for batch in train:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print("validation", sum(model(**batch)["loss"].item() for batch in validation) / len(validation))
model.report()
