"""The pull on the weights inside of `optimizer.step()`."""

from ewc.pull.hooks import Pull, let_pulls_come_last

__all__ = ["Pull", "let_pulls_come_last"]
