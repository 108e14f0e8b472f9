"""Hugging Face's Trainer."""

import tempfile

import scene
import transformers

arguments = scene.parse()
model = scene.Model(arguments)
with tempfile.TemporaryDirectory() as folder:
    asked = transformers.TrainingArguments(
        folder, per_device_train_batch_size=scene.BATCH_SIZE, num_train_epochs=arguments.epochs,
        use_cpu=not arguments.cuda,
        dataloader_num_workers=arguments.workers, dataloader_drop_last=True, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, seed=1,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, asked, train_dataset=scene.Samples(arguments), data_collator=scene.Collate(arguments)
    )
    trainer.train()
model.report()
