"""What a task leaves behind: quadratic wells, the sum of all tasks, and the one that pulls.

- `wells`: a well, its energy (the penalty is λ/2 times that), and how several add up to one.
- `kronecker`: the part of a well that has two matrices per layer in place of a diagonal.
- `tasks`: the wells of all tasks of a memory, and what pulls at one moment.
"""
