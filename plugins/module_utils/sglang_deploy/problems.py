"""Errors that list all that is wrong at once, so that whoever mends it runs the play once more and not five times."""

from __future__ import annotations

from collections.abc import Sequence


class Problems(ValueError):
    """`problems` has a line for each thing that is wrong, with what to write instead; the message has them all.

    `mark` comes before each of them in the message.
    """

    mark = ""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(f"{self.mark}{problem}" for problem in problems))
        self.problems = tuple(problems)
