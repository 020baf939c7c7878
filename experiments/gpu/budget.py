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

    def after(self, share: float) -> float:
        """The share of the whole time that is used once that share of what is left is."""
        return self.share_used + share * (1 - self.share_used)

    def allows(self, kind: str, until: float = 1.0) -> bool:
        """Whether one more of a kind is expected to end before that share of the time is used."""
        return self.left - (1 - until) * self._seconds > self._longest.get(kind, 0.0)

    def note(self, kind: str, seconds: float) -> None:
        """Remembers what one of a kind took."""
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))
