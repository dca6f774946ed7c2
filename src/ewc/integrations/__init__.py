"""Callbacks for trainers and a memory for adapters, one file per library, each with its extra.

- `ewc.integrations.transformers`: the `Trainer` of Transformers, and those of TRL.
- `ewc.integrations.lightning`: the `Trainer` of Lightning.
- `ewc.integrations.peft`: LoRA layers of PEFT.

`import ewc` imports none of them. Accelerate and plain loops need no callback.
"""
