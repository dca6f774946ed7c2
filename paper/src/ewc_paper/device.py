"""Where networks are trained: on a GPU if there is one.

Checkpoints are read into main memory, and what is restored from them is moved to this device.
"""

from typing import Any

import torch
from torch import Tensor


def training_device() -> torch.device:
    """Return the device that networks and their data are on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_device(state: Any, device: torch.device) -> Any:
    """Return a nested dict with all its tensors on a device, and all else as it is."""
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: on_device(value, device) for key, value in state.items()}
    return state
