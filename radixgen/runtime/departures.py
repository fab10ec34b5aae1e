"""When to look which clients are gone. A router is told of a closed end, but not whose it was.

Whose it was shows when something is sent to it, once the router has let go of that end: a moment
after it is told. So there are some looks, further and further apart. Knows a socket; no clients.
"""

import time
from collections.abc import Callable
from typing import Final

import zmq

DELAYS: Final = (0.0, 0.02, 0.2, 1.0)  # seconds after an end was closed


class Departures:
    """Listens to what a router tells of its connections. `clock`: seconds."""

    def __init__(
        self, socket: "zmq.Socket[bytes]", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._clock = clock
        self._due: list[float] = []  # times of looks

    def hear(self) -> bool:
        """Read what there is to read; whether it is time to look."""
        has_heard = False
        try:
            while True:
                self.monitor.recv_multipart(zmq.NOBLOCK)
                has_heard = True
        except zmq.Again:
            pass
        now = self._clock()
        if has_heard:
            self._due = [now + delay for delay in DELAYS]
        left = [at for at in self._due if at > now]
        is_due = len(left) < len(self._due)
        self._due = left
        return is_due

    def wait_ms(self) -> int | None:
        """Milliseconds until the next look, or None."""
        return max(int(1000 * (self._due[0] - self._clock())) + 1, 0) if self._due else None

    def close(self) -> None:
        self.monitor.close(0)
