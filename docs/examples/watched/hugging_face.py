"""Hugging Face's Trainer on a folder of JPEG files, with an evaluation behind each epoch."""

import sys
import tempfile

import torch
import transformers
from torchvision import datasets
from torchvision.transforms import v2

import loaderbench.integrations.hf


def pad(samples):
    """As many collate functions do: one sample after the other."""
    return {
        "pixel_values": torch.stack([image for image, _ in samples]),
        "labels": torch.tensor([label for _, label in samples]),
    }


decode = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
photos = datasets.ImageFolder(sys.argv[1], decode)
train, held_out = torch.utils.data.random_split(photos, [0.8, 0.2], torch.Generator().manual_seed(0))
config = transformers.ViTConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, image_size=64, patch_size=16,
    num_labels=len(photos.classes),
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=3, eval_strategy="epoch",
        dataloader_num_workers=1, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(
        transformers.ViTForImageClassification(config), arguments, train_dataset=train, eval_dataset=held_out,
        data_collator=pad, callbacks=[loaderbench.integrations.hf.Watch()],
    ).train()  # fmt: skip
