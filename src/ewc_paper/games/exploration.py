"""How often the agent takes a random action."""


def exploration_rate(agent_steps: int, *, start: int, end: int, final: float) -> float:
    """Return ε, which falls linearly from 1 to its final value.

    Args:
        agent_steps: steps played so far in the present context.
        start: steps at which ε starts to fall.
        end: steps at which it has reached its final value.
        final: that value.
    """
    passed = min(1.0, max(0.0, (agent_steps - start) / max(1, end - start)))
    return 1.0 + (final - 1.0) * passed
