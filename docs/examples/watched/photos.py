"""A plain loop: a small network on a folder of JPEG files, with torchvision's transforms."""

import sys

import torch
from torchvision import datasets, transforms

torch.manual_seed(0)
augment = transforms.Compose(
    [
        transforms.RandomResizedCrop(96),
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]
)
photos = datasets.ImageFolder(sys.argv[1], augment)
loader = torch.utils.data.DataLoader(photos, batch_size=16, shuffle=True, num_workers=1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
    torch.nn.Linear(256, len(photos.classes)),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.3f}")
