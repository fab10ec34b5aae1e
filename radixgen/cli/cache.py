"""`radixgen cache stats` and `cache tree`: what a running server keeps, and who uses it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from radixgen import env
from radixgen.cli import common, remote
from radixgen.cli.common import out

app = typer.Typer(
    help="Look into the radix cache of a running server: how full it is, what it holds.",
    no_args_is_help=True,
)

BAR = 40  # characters
MAX_TEXT = 60  # characters of an edge's beginning


@app.command()
def stats(
    url: remote.Url = "",
    api_key: remote.ApiKey = "",
    as_json: common.AsJson = False,
) -> None:
    """Show how many pages are used, and how many tokens the cache had.

    \b
    Examples:
      radixgen cache stats
      radixgen cache stats --url gpu-box:8000 --json
    """
    address = remote.base_url(url)
    with remote.connect(address, api_key) as client:
        info = remote.get_json(client, "/server_info", address)
    remote.need(info, address, "runtime", "page_size")
    if as_json:
        out.print_json(json.dumps({"page_size": info["page_size"], **info["runtime"]}))
    else:
        out.print(Group(*summary(info)))


@app.command()
def tree(
    url: remote.Url = "",
    api_key: Annotated[
        str,
        typer.Option(
            help="The server's admin key; its API key if it has none. Or RADIXGEN_ADMIN_KEY, "
            "RADIXGEN_API_KEY.",
            show_default=False,
            rich_help_panel="Server",
        ),
    ] = "",
    max_nodes: Annotated[
        int, typer.Option(min=1, max=4096, help="Show the largest branches only.")
    ] = 60,
    max_preview: Annotated[
        int, typer.Option(min=0, max=64, help="Tokens of each edge that are shown as text.")
    ] = 16,
    as_json: common.AsJson = False,
) -> None:
    """Draw the tree of cached prefixes: tokens, text, uses and locks of each node.

    A node is a run of tokens that some prompts share. Locked ones are in use
    by running requests; the others leave when room is needed, those first
    that have not been used for long.

    \b
    Examples:
      radixgen cache tree
      radixgen cache tree --max-nodes 500 --max-preview 40 | less -R
      radixgen cache tree --json
    """
    address = remote.base_url(url)
    key = api_key or env.read("RADIXGEN_ADMIN_KEY")
    with remote.connect(address, key) as client:
        found = remote.get_json(
            client, "/cache_tree", address, max_nodes=max_nodes, max_preview=max_preview
        )
    remote.need(found, address, "nodes", "page_size")
    if as_json:
        out.print_json(json.dumps(found))
    else:
        for root in drawn(found["nodes"]):
            out.print(root)


# ---- stats ----


def summary(info: Mapping[str, Any]) -> list[Any]:
    """The numbers of a server as lines and a table."""
    numbers: Mapping[str, float] = info["runtime"]
    page = int(info["page_size"])
    total, free = int(numbers["total_pages"]), int(numbers["free_pages"])
    locked, held = int(numbers["protected_pages"]), int(numbers["held_pages"])
    kept = int(numbers["tree_pages"]) - locked
    parts = {
        "in use by requests, shared": (locked, "yellow"),
        "in use by requests, their own": (held, "magenta"),
        "cached, can be evicted": (kept, "green"),
        "free": (free, "dim"),
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, (pages, style) in parts.items():
        share = f"{pages / total:.0%}" if total else ""
        table.add_row(Text("■", style), name, _count(pages, "page"), _tokens(pages * page), share)
    for column in (2, 3, 4):
        table.columns[column].justify = "right"
    asked, cached = int(numbers.get("prompt_tokens", 0)), int(numbers.get("cached_tokens", 0))
    rate = f" ({cached / asked:.0%})" if asked else ""
    return [
        Text(f"{info.get('model_path', '')}: {_count(total, 'page')} of {_tokens(page)}"),
        _bar(list(parts.values()), total),
        table,
        Text(f"prompts so far  {_tokens(asked)}, {cached:,} of them found in the cache{rate}"),
        Text(f"evicted so far  {_count(int(numbers.get('evicted_pages', 0)), 'page')}"),
        Text(
            f"requests        {int(numbers.get('running_sequences', 0))} running, "
            f"{int(numbers.get('waiting_requests', 0))} waiting"
        ),
    ]


def _bar(parts: list[tuple[int, str]], total: int) -> Text:
    """The parts of a whole, each at least a character wide if there is anything of it."""
    bar, left = Text(), BAR
    for pages, style in parts[:-1]:
        width = min(left, max(round(pages / total * BAR), 1) if pages else 0)
        bar.append("█" * width, style)
        left -= width
    return bar.append("░" * left, parts[-1][1])


# ---- tree ----


def drawn(nodes: list[dict[str, Any]]) -> list[Tree | Text]:
    """A drawing for each namespace."""
    roots: list[Tree | Text] = []
    trees: list[Tree] = []
    shown_below = [0] * len(nodes)
    for node in nodes:
        place, parent = len(trees), node["parent"]
        if parent < 0:
            trees.append(Tree(_root_label(node), guide_style="dim"))
            roots.append(trees[place])
        else:
            trees.append(trees[parent].add(_label(node)))
        while parent >= 0:
            shown_below[parent] += 1
            parent = nodes[parent]["parent"]
    _count_hidden(nodes, trees, shown_below)
    return roots or [Text("the cache is empty")]


def _count_hidden(nodes: list[dict[str, Any]], trees: list[Tree], shown_below: list[int]) -> None:
    """Say under each node what of it is not shown, unless it is under one that is."""
    hidden = [node["nodes_below"] - num for node, num in zip(nodes, shown_below, strict=True)]
    below = list(hidden)
    tokens = [node["tokens_below"] for node in nodes]
    for place, node in enumerate(nodes):
        if node["parent"] >= 0:
            below[node["parent"]] -= hidden[place]
            tokens[node["parent"]] -= node["num_tokens"] + node["tokens_below"]
    for place, num in enumerate(below):
        if num:
            text = f"… {num:,} smaller {'node' if num == 1 else 'nodes'}, {_tokens(tokens[place])}"
            trees[place].add(Text(text, "dim"))


def _root_label(node: Mapping[str, Any]) -> Text:
    name = f"namespace {node['namespace']}" if node["namespace"] else "root"
    num, tokens = node["nodes_below"], _tokens(node["tokens_below"])
    label = Text(f"{name}: {_count(num, 'node')}, {tokens}", "bold")
    return label.append(f"; {_count(node['hits'], 'request')}", "not bold")


def _label(node: Mapping[str, Any]) -> Text:
    locked = node["num_locks"]
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(_tokens(node["num_tokens"]), "yellow" if locked else "green")
    label.append(f"  {_count(node['hits'], 'hit')}")
    if locked:
        label.append(f"  {_count(locked, 'lock')}", "yellow")
    if node["preview"]:
        shown = json.dumps(node["preview"][:MAX_TEXT], ensure_ascii=False)
        label.append(f"  {shown[:-1]}…", "dim")
    return label


def _count(num: int, what: str) -> str:
    return f"{num:,} {what}{'' if num == 1 else 's'}"


def _tokens(num: int) -> str:
    return _count(num, "token")
