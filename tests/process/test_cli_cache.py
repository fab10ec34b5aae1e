"""`radixgen cache` and the route behind it: what is drawn, what is counted, who may look."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from command_line import radixgen
from live_server import NUM_PAGES, shared_server
from rich.console import Console

from radixgen.cli.cache import drawn
from radixgen.messages import CacheNode
from radixgen.serve.app import create_app
from radixgen.serve.settings import ServeConfig


@pytest.fixture(scope="module")
def url() -> str:
    return shared_server().url


def ask(config: ServeConfig, path: str, key: str = "") -> httpx2.Response:
    """A request to a server whose runtime is made up."""

    async def cache_tree(max_nodes: int, max_preview: int) -> list[CacheNode]:
        return [CacheNode(-1, "", 0, 0, max_nodes, 0, 0, 0, (max_preview,))]

    client = SimpleNamespace(
        cache_tree=cache_tree,
        ready=SimpleNamespace(page_size=4, num_pages=9),
        tokenizer=SimpleNamespace(decode=lambda ids, skip: f"text of {list(ids)}"),
    )
    supervisor: Any = SimpleNamespace(client=client, stats={}, num_restarts=0)
    transport = httpx2.ASGITransport(create_app(supervisor, config))

    async def get() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
            return await http.get(path, headers={"x-api-key": key} if key else {})

    return asyncio.run(get())


def test_the_route_shows_prompts_to_those_who_may_see_them() -> None:
    names = ("m",)
    answer = ask(ServeConfig(names), "/cache_tree?max_nodes=7&max_preview=3")
    assert answer.json()["nodes"][0] == {
        "parent": -1,
        "namespace": "",
        "num_tokens": 0,
        "num_locks": 0,
        "hits": 7,
        "idle": 0,
        "nodes_below": 0,
        "tokens_below": 0,
        "preview": "text of [3]",
    }
    assert ask(ServeConfig(names), "/cache_tree?max_nodes=0").status_code == 400
    apart = ServeConfig(names, api_keys=("k",), key_namespaces=True)
    assert ask(apart, "/cache_tree", "k").status_code == 403
    admin = ServeConfig(names, api_keys=("k",), key_namespaces=True, admin_key="root")
    assert ask(admin, "/cache_tree", "k").status_code == 401
    assert ask(admin, "/cache_tree", "root").status_code == 200


def test_prompts_that_share_are_drawn_under_what_they_share(url: str) -> None:
    prefix = "What these two prompts have in common is this beginning. "
    for end in ("Here is the first, and it goes on.", "The other goes on differently, as said."):
        assert radixgen("complete", prefix + end, "--url", url, "-n", "1").status == 0
    done = radixgen("cache", "tree", "--url", url, "--max-nodes", "4096", "--max-preview", "64")
    assert done.status == 0, done.err
    shared = next(line for line in done.out.splitlines() if "What these two prompts" in line)
    assert "hit" in shared
    assert "The other goes on differently" in done.out
    found = json.loads(radixgen("cache", "tree", "--json", "--url", url).out)
    assert found["nodes"][0]["parent"] == -1


def test_stats_count_pages(url: str) -> None:
    done = radixgen("cache", "stats", "--url", url)
    assert done.status == 0, done.err
    for said in (f"{NUM_PAGES:,} pages", "can be evicted", "found in the cache", "waiting"):
        assert said in done.said
    numbers = json.loads(radixgen("cache", "stats", "--json", "--url", url).out)
    used = ("free_pages", "held_pages", "tree_pages")
    assert sum(numbers[name] for name in used) == numbers["total_pages"] == NUM_PAGES


def node(parent: int, tokens: int, below: tuple[int, int] = (0, 0), **more: Any) -> dict[str, Any]:
    return {
        "parent": parent,
        "namespace": "",
        "num_tokens": tokens,
        "num_locks": 0,
        "hits": 1,
        "idle": 0,
        "nodes_below": below[0],
        "tokens_below": below[1],
        "preview": "",
    } | more


def text(nodes: list[dict[str, Any]]) -> str:
    console = Console(width=60, color_system=None)
    with console.capture() as capture:
        for root in drawn(nodes):
            console.print(root)
    return capture.get()


def test_a_drawing() -> None:
    nodes = [
        node(-1, 0, (6, 1100), hits=9),
        node(0, 1000, (3, 70), hits=5, num_locks=2, preview='a "word"\n[bold]'),
        node(1, 50, (1, 10)),
        node(-1, 0, (1, 4), namespace="5f2c"),
    ]
    assert text(nodes) == (
        "root: 6 nodes, 1,100 tokens; 9 requests\n"
        '├── 1,000 tokens  5 hits  2 locks  "a \\"word\\"\\n[bold]…\n'
        "│   ├── 50 tokens  1 hit\n"
        "│   │   └── … 1 smaller node, 10 tokens\n"
        "│   └── … 1 smaller node, 10 tokens\n"
        "└── … 2 smaller nodes, 30 tokens\n"
        "namespace 5f2c: 1 node, 4 tokens; 1 request\n"
        "└── … 1 smaller node, 4 tokens\n"
    )
    assert text([]) == "the cache is empty\n"


@pytest.mark.parametrize("command", ["stats", "tree"])
def test_nobody_there(command: str) -> None:
    done = radixgen("cache", command, "--url", "127.0.0.1:1")
    assert done.status == 1
    assert "no server answers at http://127.0.0.1:1" in done.said


def test_limits_are_told() -> None:
    done = radixgen("cache", "tree", "--max-nodes", "0")
    assert done.status == 2
    assert "Invalid value for '--max-nodes'" in done.said
