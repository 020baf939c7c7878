"""The time that the GPU benchmark has, and whether one more piece of it fits in."""

import time


class Budget:
    """The time that is left, as seen by the longest piece of each kind so far.

    Args:
      minutes: from now on.
    """

    def __init__(self, minutes: float) -> None:
        self._began, self._seconds = time.monotonic(), 60 * minutes
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds."""
        return self._began + self._seconds - time.monotonic()

    @property
    def share_used(self) -> float:
        """From 0 to 1."""
        return 1 - self.left / self._seconds

    def allows(self, kind: str) -> bool:
        """Whether one more of a kind is expected to end in time."""
        return self.left > self._longest.get(kind, 0.0)

    def note(self, kind: str, seconds: float) -> None:
        """Remembers what one of a kind took."""
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))
