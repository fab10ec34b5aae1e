"""How a process that works for the runtime learns that it is gone. Knows a pid and stdin."""

import os
import select
import sys
import threading

POLL_SECONDS = 0.5


def leave_with_parent(parent_pid: int) -> None:
    """Have this process end at once when its parent is gone, also in the midst of its work."""
    threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()


def _watch(parent_pid: int) -> None:
    """The parent's end of our stdin closes with it. A grandchild that holds a copy of that end
    would hide this, so the parent's pid is compared as well."""
    poller = select.poll()
    poller.register(sys.stdin.fileno(), 0)  # a hang-up is always reported
    while os.getppid() == parent_pid:
        if poller.poll(POLL_SECONDS * 1000):
            break
    os._exit(0)
