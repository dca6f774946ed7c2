"""The pull on the weights inside of `optimizer.step()`.

- `hooks`: what is called before and after a step, and what it does.
- `proximal`: the pull after a step, on weights with a diagonal precision.
- `kronecker`: that on layers with Kronecker factors.
- `checks`: what is looked at on the way, and warned of.

The step size of each optimizer is in `ewc.step_size`.
"""

from ewc.pull.hooks import Pull, let_pulls_come_last

__all__ = ["Pull", "let_pulls_come_last"]
