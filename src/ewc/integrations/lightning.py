"""A memory in the `Trainer` of Lightning, saved and restored as part of its checkpoints."""

from typing import Any

from torch import Tensor

from ewc.integrations.trainer_memory import Consolidation, TrainerMemory
from ewc.memory import EWC
from ewc.step_size import How

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.lightning needs the extra 'lightning': pip install 'ewc[lightning]'"
    ) from error


class EWCCallback(Callback):
    """Lets a memory pull on the weights while a `Trainer` trains.

    The memory is attached when training begins and detached when it ends. It is part of every
    checkpoint and restored by `fit(..., ckpt_path=...)`.

    Args:
        memory: the memory, made of the `LightningModule` or of a module inside of it. Its model is
            what a consolidation calls with the inputs of a batch.
        how: how it pulls, see `EWC.attach`.
        compiled: pull with compiled kernels, see `EWC.attach`.
        consolidate: whether to consolidate at the end of training, on the trainer's own batches of
            training data; or the options for it, such as `{"task": "B", "max_samples": 1000}`.

    Example:
        >>> import torch, ewc
        >>> from ewc.integrations.lightning import EWCCallback
        >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
        >>> callback = EWCCallback(memory, consolidate={"task": "B"})
        >>> # lightning.Trainer(callbacks=[callback]).fit(module, loader)
    """

    def __init__(
        self,
        memory: EWC,
        *,
        how: How = "proximal",
        compiled: bool = False,
        consolidate: Consolidation = False,
    ) -> None:
        self._inside = TrainerMemory(memory, how, consolidate, compiled)
        self._restored = False  # whether the memory is that of the checkpoint that is resumed

    @property
    def memory(self) -> EWC:
        """The memory that pulls."""
        return self._inside.memory

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the memory to the optimizers."""
        if trainer.ckpt_path is not None and not self._restored:
            self._inside.check_resumed("the checkpoint was saved without a memory")
        self._inside.start(trainer.optimizers)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach the memory, and consolidate if that was asked for."""
        assert trainer.train_dataloader is not None  # there was training
        self._inside.finish(trainer.train_dataloader)
        self._restored = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory as part of a checkpoint."""
        return self.memory.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the memory of a checkpoint."""
        self.memory.load_state_dict(state_dict)
        self._restored = True
