"""Commands in the test's own process: a tenth of the time that an interpreter takes to start."""

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from radixgen.__main__ import app
from radixgen.cli import common


@dataclass(frozen=True)
class Done:
    """What a command left: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All of it on one line, as terminals break lines where they like."""
        return " ".join((self.out + self.err).replace("│", " ").split())


def radixgen(*args: str, stdin: str | bytes = "", columns: int = 200) -> Done:
    """Run `radixgen ARGS` here. stdin and stdout are no terminals."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    given = io.TextIOWrapper(io.BytesIO(data), "utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "stdin", given),
        mock.patch.dict("os.environ", {"COLUMNS": str(columns)}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = common.run(lambda: app(args, prog_name="radixgen"))
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Done(status, *texts)
