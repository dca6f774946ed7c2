"""Callbacks for trainers, one file per trainer, each of which needs its extra.

- `ewc.integrations.transformers`: the `Trainer` of Transformers, and those of TRL.
- `ewc.integrations.lightning`: the `Trainer` of Lightning.

`import ewc` imports none of them. Accelerate and plain loops need no callback.
"""
