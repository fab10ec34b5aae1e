"""Rung by one thread, heard by any number of others. Knows nothing of what is new."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Bell:
    """Wakes whoever waits for something new.

    Costs whoever rings nothing while nobody listens. A listener first listens and then looks, so
    that nothing comes between: what was there before is seen, and what comes later is heard.
    """

    __slots__ = ("_gate", "_wakers")

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a finalizer may run while its own thread holds it
        self._wakers: tuple[Callable[[], object], ...] = ()

    def ring(self) -> None:
        """Something is new, and can be seen already."""
        for waker in self._wakers:
            with contextlib.suppress(RuntimeError):  # that listener's event loop is closed
                waker()

    @contextlib.contextmanager
    def heard(self, waker: Callable[[], object]) -> Iterator[None]:
        """Call `waker` whenever it rings, in the thread that rings it."""
        with self._gate:
            self._wakers = (*self._wakers, waker)
        try:
            yield
        finally:
            with self._gate:
                self._wakers = tuple(other for other in self._wakers if other is not waker)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Block until `condition()` holds, looked at whenever it rings."""
        rung = threading.Event()
        with self.heard(rung.set):
            while not condition():
                rung.wait()
                rung.clear()
