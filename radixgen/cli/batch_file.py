"""Files of requests and answers in OpenAI's batch format, and going on where a run ended.

    requests   {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {…}}
    answers    {"id": …, "custom_id": "a", "response": {"status_code", "request_id", "body"}, "error": null}
               {"id": …, "custom_id": "b", "response": null, "error": {"code", "message"}}

An answer is one line, written at once, in the order in which they come. A process that is killed
leaves whole lines and at most one torn at the end, which the next run cuts off. Knows no HTTP.
"""  # noqa: E501 - the lines of the format as they are

import fcntl
import json
import os
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from radixgen.errors import InvalidRequest

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
MAX_FAULTS = 5  # of a file, told at once
MAX_BEFORE = 32  # characters that are shown before a fault
SURROGATE = "a lone surrogate is no character; replace or remove it"
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A request as it stands in the file; `number` counts from 1."""

    number: int
    custom_id: str
    raw: bytes


class LineError(Exception):
    """A request that is never sent. `code` and the message go into the line's answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_requests(data: bytes, name: str) -> list[Line]:
    """The requests of a file. Raises InvalidRequest that names the lines without a usable id."""
    lines: list[Line] = []
    first: dict[str, int] = {}
    faults: list[str] = []
    for number, raw in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            custom_id = _custom_id(raw)
            if custom_id in first:
                raise ValueError(f"custom_id {custom_id!r} is that of line {first[custom_id]} too")
        except ValueError as error:
            faults.append(f"line {number}: {error}")
            continue
        first[custom_id] = number
        lines.append(Line(number, custom_id, raw))
    if faults:
        more = f"\n… and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise InvalidRequest(f"{name}: " + "\n".join(faults[:MAX_FAULTS]) + more, "input")
    if not lines:
        raise InvalidRequest(f"{name} holds no request", "input")
    return lines


def _custom_id(raw: bytes) -> str:
    """Raises ValueError."""
    value = _object(raw)
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError("custom_id is missing, or is no text")
    return custom_id


def _object(raw: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


def parse(line: Line) -> tuple[str, bytes]:
    """Path and body of a request. Raises LineError for what no batch can hold."""
    if not _is_text(line.custom_id):
        raise LineError("invalid_custom_id", f"custom_id {_shown(line.custom_id)}: {SURROGATE}")
    try:
        value = _object(line.raw)
    except ValueError as error:  # deeper than Python reads from where it is called now
        raise LineError("invalid_body", f"the request {error}") from None
    method, url, body = value.get("method", "POST"), value.get("url"), value.get("body")
    if method != "POST":
        raise LineError("invalid_method", f"method {_shown(method)} is not POST")
    if url not in URLS:
        raise LineError("invalid_url", f"url {_shown(url)} is none of {', '.join(URLS)}")
    if not isinstance(body, dict):
        raise LineError("invalid_body", "body is missing, or is no object")
    if body.get("stream"):
        raise LineError("invalid_body", "body.stream: an answer of a batch is whole; leave it out")
    return url, _encoded(body)


def _encoded(body: dict[str, Any]) -> bytes:
    """A body as it is sent. Raises LineError for what Python's JSON reads and nobody else's."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        before = error.object[max(error.start - MAX_BEFORE, 0) : error.start]
        message = f"body: after {before!r}: {SURROGATE}"
    except RecursionError:
        message = "body is nested too deeply"
    except ValueError:
        message = "body holds NaN or Infinity, or a number of that size, which JSON does not have"
    raise LineError("invalid_body", message) from None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    return repr(value)[:64]


def answered(line: Line, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """The record of a request that a server answered, with success or not."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _record(line, response, None)


def failed(line: Line, error: LineError) -> dict[str, Any]:
    """The record of a request that no server has seen."""
    return _record(line, None, {"code": error.code, "message": str(error)})


def _record(line: Line, response: Any, error: Any) -> dict[str, Any]:
    name = f"batch_req_{uuid.uuid4().hex}"
    return {"id": name, "custom_id": line.custom_id, "response": response, "error": error}


def succeeded(record: dict[str, Any]) -> bool:
    """Whether a record is of a request that was answered with success."""
    response = record.get("response")
    return isinstance(response, dict) and response.get("status_code") == 200


class Answers:
    """The file of answers, held by one run at a time. `done`: ids that it had, and whether they
    succeeded. Use it as a context.

    Raises InvalidRequest when another run writes to it, or when it holds something else.
    """

    def __init__(self, path: Path, ids: Collection[str], *, retry_failed: bool = False) -> None:
        self.done: dict[str, bool] = {}
        self._path = path
        self._file = path.open("ab+")
        try:
            self._lock()
            self._read(ids)
            if retry_failed and not all(self.done.values()):
                self._drop_failed()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; after this a kill does not lose it."""
        text = json.dumps(record, ensure_ascii=False)
        # UTF-8 lacks lone surrogates only: written with a backslash, they are JSON's own escapes.
        self._file.write(text.encode(errors="backslashreplace") + b"\n")
        self._file.flush()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidRequest(f"another run is writing to {self._path}", "output") from None

    def _read(self, ids: Collection[str]) -> None:
        """Take in what earlier runs wrote, and cut off what was torn."""
        end = 0
        for number, raw in self._lines():
            whole = raw.endswith(b"\n")
            try:
                record = _object(raw)
                custom_id = _custom_id(raw)
            except ValueError as error:
                if whole:
                    raise self._foreign(f"line {number} {error}") from None
                break
            if not whole:
                break  # its end may be missing even if it reads as JSON
            if "response" not in record:
                raise self._foreign(f"line {number} is no answer")
            if custom_id not in ids:
                raise self._foreign(f"line {number} answers {custom_id!r}, which is not asked")
            self.done[custom_id] = succeeded(record)
            end += len(raw)
        self._file.truncate(end)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        return enumerate(self._file, 1)

    def _foreign(self, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self._path} is not the output of this batch: {why}. Give another --output, or "
            "remove the file",
            "output",
        )

    def _drop_failed(self) -> None:
        """Rewrite the file with the successes, so that the failures are tried again."""
        kept = [raw for _, raw in self._lines() if succeeded(_object(raw))]
        beside = self._path.with_name(self._path.name + ".part")
        with beside.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        self._file.close()
        self._file = self._path.open("ab+")
        self._lock()
        self.done = dict.fromkeys((id for id, good in self.done.items() if good), True)
