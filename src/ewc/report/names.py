"""What methods and tasks are called in tables, figures and lines of progress."""

METHODS = {
    "ewc": "EWC",
    "l2": "L2",
    "sgd": "SGD",
    "dropout": "SGD + dropout",
    "joint": "joint",
    "single": "single task",
}


def task_name(task: int) -> str:
    """A, B, ... Z for the first tasks, then numbers."""
    return chr(ord("A") + task) if task < 26 else str(task + 1)
