"""A memory in the `Trainer` of Transformers and those derived from it, such as TRL's `SFTTrainer`.

The memory is saved as `ewc_memory.safetensors` beside `optimizer.pt` in every `checkpoint-N`. A
`Trainer` does not tell its callbacks which checkpoint it resumes, so the place of the file and a
name of the run are recorded in `trainer_state.json`, and the file has that name too.
"""

from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from torch import Tensor

from ewc.files import read_tensors, write_tensors
from ewc.integrations.trainer_memory import Consolidation, TrainerMemory
from ewc.memory import EWC
from ewc.step_size import How

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.transformers needs the extra 'transformers': "
        "pip install 'ewc[transformers]'"
    ) from error

FILE_NAME = "ewc_memory.safetensors"
KEY = "ewc"  # of our entry in trainer_state.json


class EWCCallback(TrainerCallback):
    """Lets a memory pull on the weights while a `Trainer` trains.

    The memory is attached when training begins and detached when it ends. It is saved with every
    checkpoint and restored by `train(resume_from_checkpoint=...)`.

    Args:
        memory: the memory, made of the model that is given to the trainer.
        how: how it pulls, see `EWC.attach`.
        compiled: pull with compiled kernels, see `EWC.attach`.
        consolidate: whether to consolidate at the end of training, on the trainer's own batches of
            training data; or the options for it, such as `{"task": "B", "kind": "sampled"}`.

    Example:
        >>> import ewc
        >>> from ewc.integrations.transformers import EWCCallback
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
        >>> model = GPT2LMHeadModel(config)
        >>> memory = ewc.EWC(model, strength=100.0)
        >>> callback = EWCCallback(memory, consolidate={"task": "B", "kind": "sampled"})
        >>> # Trainer(model, args, train_dataset=..., callbacks=[callback]).train()
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
        self._run = ""

    @property
    def memory(self) -> EWC:
        """The memory that pulls."""
        return self._inside.memory

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the memory if training is resumed, and attach it to the optimizer."""
        if state.global_step > 0:
            self._restore(args, state)
        self._run = uuid4().hex
        self._inside.start([kwargs["optimizer"]])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record, before a checkpoint may be saved, where its memory will be."""
        file = str((_checkpoint(args, state) / FILE_NAME).absolute())
        _records(state)[KEY] = {"run": self._run, "file": file}

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the memory beside the optimizer."""
        tensors = self.memory.state_dict()  # by all processes: the memory may be sharded
        if args.should_save:
            file = _checkpoint(args, state) / FILE_NAME
            write_tensors(file, tensors, {"run": _name(self._run, state)})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach the memory, and consolidate if that was asked for."""
        self._inside.finish(kwargs["train_dataloader"])

    def _restore(self, args: TrainingArguments, state: TrainerState) -> None:
        """Restore the memory of the checkpoint that was resumed, or complain."""
        recorded = _records(state).get(KEY)
        if recorded is None:
            self._inside.check_resumed("the checkpoint was saved without a memory")
            return
        places = (_checkpoint(args, state) / FILE_NAME, Path(recorded["file"]))
        tensors = _first_of_run(places, _name(recorded["run"], state))
        if tensors is None:
            self._inside.check_resumed(
                f"the checkpoint of step {state.global_step} had a memory, but it is neither in "
                f"{places[0]} nor in {places[1]}"
            )
        else:
            self.memory.load_state_dict(tensors)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the directory of the checkpoint of the present step."""
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _records(state: TrainerState) -> dict[str, Any]:
    """Return what `trainer_state.json` keeps for callbacks; its annotation is that of a list."""
    return cast(dict[str, Any], state.stateful_callbacks)


def _name(run: str, state: TrainerState) -> str:
    """Return the name of a run's memory at the present step."""
    return f"{run}-{state.global_step}"


def _first_of_run(places: tuple[Path, ...], name: str) -> dict[str, Tensor] | None:
    """Return the first memory with this name, so that one of another run is never taken."""
    for place in places:
        if place.is_file():
            tensors, metadata = read_tensors(place)
            if metadata.get("run") == name:
                return tensors
    return None
