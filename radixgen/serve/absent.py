"""Routes that clients ask for and this server has not: a 400 that says why, and what to use.

A 404 would leave a client to guess whether it has the wrong address. Not in `/openapi.json`.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from radixgen.serve.errors import ApiError, bad_request

router = APIRouter(include_in_schema=False)

METHODS = ["GET", "POST", "PUT", "DELETE"]

_NO_VECTORS = "the model that is served generates text; it makes no embeddings"
_NO_RANKS = (
    "the model that is served generates text and is no ranking or classifying model; "
    "/v1/decisions gives the probabilities of answers that you name"
)
_NO_SOUND = "the model that is served reads and writes text, no sound"
_NO_PICTURES = "the model that is served reads and writes text, no pictures"
_NO_FILES = (
    "this server keeps no files and no batches; send the requests themselves, or use "
    "`radixgen run-batch` for a file of them"
)
_NO_STATE = "this server keeps nothing of a conversation; send its messages with each request"
_NO_TRAINING = "this server does not train models"
_NO_ADAPTERS = (
    "adapters are named when the server starts, with --set adapters={…}; a request names one of "
    "them as its model"
)
_NOT_OLLAMA = "Ollama's own routes are not spoken here; its OpenAI-compatible ones under /v1 are"

REASONS = {
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/v1/embed", "/pooling"), _NO_VECTORS),
    **dict.fromkeys(
        ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/v1/classify",
         "/classify", "/v1/moderations"), _NO_RANKS,
    ),
    "/v1/audio/{rest:path}": _NO_SOUND,
    "/v1/realtime": _NO_SOUND,
    "/v1/images/{rest:path}": _NO_PICTURES,
    "/v1/videos": _NO_PICTURES,
    **dict.fromkeys(
        ("/v1/files", "/v1/files/{rest:path}", "/v1/batches", "/v1/batches/{rest:path}",
         "/v1/uploads", "/v1/uploads/{rest:path}", "/v1/vector_stores",
         "/v1/vector_stores/{rest:path}"), _NO_FILES,
    ),
    **dict.fromkeys(
        ("/v1/assistants", "/v1/threads", "/v1/threads/{rest:path}", "/v1/conversations",
         "/v1/conversations/{rest:path}"), _NO_STATE,
    ),
    "/v1/fine_tuning/{rest:path}": _NO_TRAINING,
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _NO_ADAPTERS),
    "/api/{rest:path}": _NOT_OLLAMA,
}  # fmt: skip


def _add(path: str, reason: str) -> None:
    @router.api_route(path, methods=METHODS)
    async def refuse() -> None:
        raise bad_request(reason, code="unsupported_route")


for _path, _reason in REASONS.items():
    _add(_path, _reason)


@router.api_route("/v1/responses/{rest:path}", methods=["GET", "POST", "DELETE"])
async def stored_response(rest: str, request: Request) -> Response:
    """No response is stored, so there is none of any name."""
    raise ApiError(404, f"there is no response {rest[:64]!r}: none is stored", code="not_stored")
