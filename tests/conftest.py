"""Settings for all tests: one thread a worker, and no time limit on a single hypothesis example."""

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("ewc", deadline=None)
hypothesis.settings.load_profile("ewc")
