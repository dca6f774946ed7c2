"""An engine that does its jobs here, one after another: what a worker does, without workers."""

from collections.abc import Callable, Sequence

from ewc_paper.runs.engine import Job, Tell, outcome


class InlineEngine:
    """Counts the jobs that it was given; `before` is called before each, and may raise."""

    def __init__(self, before: Callable[[Job], None] = lambda job: None) -> None:
        self.before = before
        self.pieces: list[str] = []  # the job of every piece of work that was done

    def run(self, jobs: Sequence[Job], *, checkpoint_seconds: float, tell: Tell) -> None:
        for job in jobs:
            self.before(job)

            def report(news, name: str = job.name) -> None:  # type: ignore[no-untyped-def]
                self.pieces.append(name)
                tell(news)

            ended = outcome(
                job, report=report, stop=lambda: False, checkpoint_seconds=checkpoint_seconds
            )
            assert ended is not None
            tell(ended)
