"""What the radix tree holds, for those who run the server: it shows the beginnings of prompts."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from radixgen.serve.context import get_context
from radixgen.serve.errors import ApiError
from radixgen.serve.http import json_answer
from radixgen.serve.openapi import answers

router = APIRouter(tags=["server"])


@router.get("/cache_tree", responses=answers(None))
async def cache_tree(
    request: Request,
    max_nodes: Annotated[int, Query(ge=1, le=4096)] = 200,
    max_preview: Annotated[int, Query(ge=0, le=64, description="tokens of an edge")] = 16,
) -> Response:
    """The largest nodes of the radix tree, parents first; `parent` is a place in the list."""
    context = get_context(request)
    config, client = context.config, context.supervisor.client
    if config.key_namespaces and config.admin_key is None:
        message = "keys are kept apart here, and the tree shows prompts of all: set an admin key"
        raise ApiError(403, message)
    nodes = await client.cache_tree(max_nodes, max_preview)
    return json_answer(
        {
            "page_size": client.ready.page_size,
            "num_pages": client.ready.num_pages,
            "nodes": [
                {
                    "parent": node.parent,
                    "namespace": node.namespace,
                    "num_tokens": node.num_tokens,
                    "num_locks": node.num_locks,
                    "hits": node.hits,
                    "idle": node.idle,
                    "nodes_below": node.nodes_below,
                    "tokens_below": node.tokens_below,
                    "preview": client.tokenizer.decode(node.preview, False),
                }
                for node in nodes
            ],
        }
    )
