"""A memory in the `Trainer` of Lightning, saved and restored as part of its checkpoints."""

from functools import partial
from typing import Any, cast

from ewc.distributed.shards import NO_DEEPSPEED
from ewc.integrations.trainer_memory import DEFAULT_NAME, Consolidation, TrainerMemory
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
    checkpoint and restored by `fit(..., ckpt_path=...)`. The trainer logs its strength, and the
    estimated and the allowed rise of the loss of what is remembered.

    Args:
        memory: the memory, made of the `LightningModule` or of a module inside of it. Its model is
            what a consolidation calls with the inputs of a batch.
        how: how it pulls, see `EWC.attach`. By default as the memory does: `"proximal"`, and
            `"gradient"` for a `LoraEWC`.
        consolidate: whether to consolidate at the end of training, on the trainer's own batches of
            training data; or the options for it, such as `{"task": "B", "max_samples": 1000}`.
            Without a `kind` it is `"exact"` for a classifier of at most 1,000 classes, and
            `"sampled"` otherwise, as for language models. Two samples of the first batch are tried
            before the first step.
        name: the name under which the memory is saved and restored. With several memories in one
            trainer, each needs a name of its own.

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
        how: How | None = None,
        consolidate: Consolidation = False,
        name: str = DEFAULT_NAME,
    ) -> None:
        self._inside = TrainerMemory(memory, how, consolidate, name)
        self._restored = False  # whether the memory is that of the checkpoint that is resumed

    @property
    def memory(self) -> EWC:
        """The memory that pulls."""
        return self._inside.memory

    @property
    def state_key(self) -> str:
        """The key of the memory in a checkpoint."""
        if self._inside.name == DEFAULT_NAME:
            return super().state_key
        return self._generate_state_key(name=self._inside.name)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse the name of another callback, and DeepSpeed."""
        if type(trainer.strategy).__name__.startswith("DeepSpeed"):
            raise TypeError(NO_DEEPSPEED)
        callbacks: list[Callback] = cast(Any, trainer).callbacks  # there, but not declared
        self._inside.check_name([c._inside for c in callbacks if isinstance(c, EWCCallback)])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the memory to the optimizers."""
        if trainer.ckpt_path is not None and not self._restored:
            self._inside.check_resumed(
                f"the checkpoint was saved without a memory named {self._inside.name!r}"
            )
        if self._inside.wants_a_batch and isinstance(trainer.train_dataloader, dict | list | tuple):
            raise ValueError(
                "consolidate= takes the batches of one loader, and this training has several: "
                "leave it out and call memory.consolidate(batches, ...) after training"
            )
        self._inside.start(trainer.optimizers)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Try on the first batch what is to be done at the end."""
        if batch is not None:
            self._inside.try_out(batch, trainer.train_dataloader)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the strength and the rise of what is remembered, as often as the trainer logs."""
        every = cast(Any, trainer).log_every_n_steps  # there, but not declared
        if every and trainer.global_step % every == 0:
            pl_module.log_dict(self._inside.values())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach the memory, and consolidate if that was asked for."""
        assert trainer.train_dataloader is not None  # there was training
        self._inside.finish(trainer.train_dataloader, partial(_as_trained, trainer, pl_module))
        self._restored = False

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Make the memory part of a checkpoint."""
        # Lightning would put what `state_dict` returns there. But it refuses two callbacks with
        # this method and the same key before `setup` can say what to do.
        checkpoint["callbacks"][self.state_key] = self.memory.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the memory of a checkpoint."""
        self.memory.load_state_dict(state_dict)
        self._restored = True


def _as_trained(trainer: Trainer, module: LightningModule, batch: Any) -> Any:
    """Return a batch as `training_step` gets it: in its precision, and after the module's hooks."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch)
    return trainer.strategy.batch_to_device(batch)
