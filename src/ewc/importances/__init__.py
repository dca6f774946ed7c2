"""Importances other than the Fisher, each a precision for `EWC.anchor`.

- `SynapticIntelligence` watches training: how much did each weight lower the loss?
- `memory_aware_synapses` needs no labels: how much does the output depend on each weight?
- `second_moments` is free: what Adam or RMSprop knows about the gradients already.
"""

from ewc.importances.memory_aware_synapses import memory_aware_synapses
from ewc.importances.second_moments import second_moments
from ewc.importances.synaptic_intelligence import SynapticIntelligence

__all__ = ["SynapticIntelligence", "memory_aware_synapses", "second_moments"]
