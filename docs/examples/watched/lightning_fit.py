"""Lightning's Trainer on a folder of JPEG files, with a validation behind each epoch."""

import sys

import lightning
import torch
from torchvision import datasets, transforms

import loaderbench.integrations.lightning


class Classifier(lightning.LightningModule):
    def __init__(self, num_classes):
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 5, stride=2),
            torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(256, num_classes),
        )  # fmt: skip

    def training_step(self, batch, number):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


photos = datasets.ImageFolder(sys.argv[1], transforms.Compose([transforms.CenterCrop(96), transforms.ToTensor()]))
train, held_out = torch.utils.data.random_split(photos, [0.8, 0.2], torch.Generator().manual_seed(0))
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[loaderbench.integrations.lightning.Watch()],
)  # fmt: skip
trainer.fit(
    Classifier(len(photos.classes)),
    torch.utils.data.DataLoader(train, batch_size=16, shuffle=True, num_workers=1),
    torch.utils.data.DataLoader(held_out, batch_size=16, num_workers=1),
)
