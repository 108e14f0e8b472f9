"""Lightning's Trainer."""

import lightning
import scene
import torch


class Module(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, number):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


arguments = scene.parse()
model = scene.Model(arguments)
trainer = lightning.Trainer(
    accelerator="gpu" if arguments.cuda else "cpu", devices=1, max_epochs=arguments.epochs, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Module(model), scene.loader(arguments, scene.Samples(arguments)))
model.report()
