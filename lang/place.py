"""Lines of users' programs, so that errors found later can say where they come from."""

import linecache
import os
import sys
import traceback
from dataclasses import dataclass
from types import FrameType

from radixgen.errors import RadixgenError

_PACKAGE = __name__.partition(".")[0] + "."
_PROGRAMS = __name__.rpartition(".")[0] + ".programs."
_LIBRARY = os.path.dirname(linecache.__file__) + os.sep  # the standard one
_INSTALLED = tuple(_LIBRARY + name + os.sep for name in ("site-packages", "dist-packages"))


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program."""

    program: str
    filename: str
    line: int

    def __str__(self) -> str:
        source = linecache.getline(self.filename, self.line).strip()
        where = f"in program {self.program!r}, {self.filename}:{self.line}"
        return f"{where}: {source}" if source else where


def caller(program: str) -> Place | None:
    """The innermost line outside this package and the standard library, which calls ours for
    `with` blocks: the user's, or that of a ready-made program."""
    frame = sys._getframe(1)
    while not _is_users(frame):
        outer = frame.f_back
        if outer is None:
            return None
        frame = outer
    return Place(program, frame.f_code.co_filename, frame.f_lineno)


def _is_users(frame: FrameType) -> bool:
    module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    if module.startswith(_PACKAGE) and not module.startswith(_PROGRAMS):
        return False
    is_standard = file.startswith(_LIBRARY) and not file.startswith(_INSTALLED)
    return not is_standard and not file.startswith("<frozen ")


def note_line(error: BaseException, program: str) -> None:
    """Note the user's line at which one of our errors was raised, unless it has one already."""
    if not isinstance(error, RadixgenError) or hasattr(error, "__notes__"):
        return
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_users(frame):
            note(error, Place(program, frame.f_code.co_filename, line))
            return


def note(error: BaseException, place: Place | None) -> None:
    """Add the line to an error's notes, once."""
    if place is not None and str(place) not in getattr(error, "__notes__", ()):
        error.add_note(str(place))
