"""One rank of a split model leads: it tells the others each computation, and all do it at once.

    leader             message                          followers
    decoder.step       index tensors of the step        the same step over their parts; tokens that
                                                        a GPU has drawn come by an exchange in it
    decoder.logits     hidden states                    their part of the head
    decoder.copy       pages                            the same pages of their own heads

The leader alone has a scheduler, a sampler and requests; the others have none and need none. A
message is raw arrays behind their lengths, whose types its kind says: nothing in it is executed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from radixgen.batch import PageCopy
from radixgen.model.adapters import AdapterTokens
from radixgen.model.attention import AttentionMetadata, Fed, PlainPages, StepInputs
from radixgen.model.decoder import Decoder
from radixgen.model.device import on_device
from radixgen.model.kv_cache import KVCache

_MAX_LOGITS = 1 << 23  # computed with the step, 32 MiB of float32; beyond it row by row, as asked


class Channel(Protocol):
    """The way to the followers."""

    def send(self, message: bytes) -> None: ...

    def give_up(self, error: Exception) -> Exception:
        """What to raise when a computation failed half way: no rank knows where the others are."""
        ...


class Kind(IntEnum):
    STEP = 0
    LOGITS = 1
    COPY = 2


class LeadingDecoder(Decoder):
    """A decoder of the first rank, whose followers compute whatever it computes."""

    def __init__(self, decoder: Decoder, channel: Channel) -> None:
        super().__init__(
            decoder.config,
            decoder.weights,
            decoder.dtype,
            decoder.max_context,
            decoder.adapters,
            decoder.kernels,
            decoder.peers,
        )
        self._tiled = decoder._tiled
        self._channel = channel

    def step(
        self, inputs: StepInputs, cache: KVCache, want_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        outputs = len(inputs.token_ids) if inputs.outputs is None else len(inputs.outputs)
        want_logits = want_logits and outputs * self.config.vocab_size <= _MAX_LOGITS
        message = encode_step(inputs, want_logits, list(self.adapters))
        with announced(self._channel, message):
            hidden, _ = super().step(inputs, cache, want_logits=False)
            return hidden, super().logits(hidden) if want_logits else None

    def logits(self, hidden: Tensor) -> Tensor:
        with announced(self._channel, _message(Kind.LOGITS, [hidden])):
            return super().logits(hidden)

    def copy(self, copies: Sequence[PageCopy], cache: KVCache) -> None:
        if copies:
            numbers = [(each.source, each.target, each.num_tokens) for each in copies]
            with announced(self._channel, _message(Kind.COPY, [torch.tensor(numbers)])):
                super().copy(copies, cache)


@contextmanager
def announced(channel: Channel, message: bytes) -> Iterator[None]:
    """Do what the message says, while the followers do it."""
    try:
        channel.send(message)
        yield
    except Exception as error:
        raise channel.give_up(error) from error


@torch.inference_mode()
def follow(decoder: Decoder, cache: KVCache, receive: Callable[[], bytes | None]) -> None:
    """Compute what the leader tells, until `receive` gives None."""
    while (message := receive()) is not None:
        with on_device(decoder.device):
            _compute(decoder, cache, *_open(message))


def _compute(decoder: Decoder, cache: KVCache, kind: Kind, parts: Sequence[memoryview]) -> None:
    if kind == Kind.STEP:
        inputs, want_logits = decode_step(parts, list(decoder.adapters), decoder.device)
        hidden, _ = decoder.step(inputs, cache, want_logits=False)
        if want_logits:
            decoder.logits(hidden)
    elif kind == Kind.LOGITS:
        hidden = _tensor(parts[0], decoder.dtype).view(-1, decoder.config.hidden_size)
        decoder.logits(hidden.to(decoder.device))
    else:
        numbers = _tensor(parts[0], torch.int64).view(-1, 3).tolist()
        decoder.copy([PageCopy(*each) for each in numbers], cache)


# ---- messages ----


def encode_step(inputs: StepInputs, want_logits: bool, adapters: Sequence[str]) -> bytes:
    """`adapters`: the names of all of them, in the order that every rank has."""
    numbers = [adapters.index(each.name) for each in inputs.adapters]
    plain = inputs.plain
    flags = (want_logits, inputs.outputs is None, plain is not None)
    head = torch.tensor([*map(int, flags), *numbers])
    meta = inputs.attention
    parts = [head, inputs.token_ids, inputs.positions, inputs.slots]
    parts += [meta.qo_indptr, meta.kv_indptr, meta.kv_indices, meta.kv_last_page_len]
    parts += [
        inputs.output_attention.qo_indptr,
        torch.empty(0) if inputs.outputs is None else inputs.outputs,
    ]
    none = [torch.empty(0)] * 3
    parts += none if plain is None else [plain.indices, plain.sources, plain.targets]
    parts.append(torch.empty(0) if inputs.fed is None else inputs.fed.places)
    for each in inputs.adapters:
        parts += [each.tokens, each.outputs]
    return _message(Kind.STEP, parts)


def decode_step(
    parts: Sequence[memoryview], adapters: Sequence[str], device: torch.device
) -> tuple[StepInputs, bool]:
    """What `encode_step` was given; `output_ends`, which rows are read by, stay with the leader, as
    do drawn tokens: 0 stands for each, on the device, until its step exchanges them."""
    head = _tensor(parts[0], torch.int64).tolist()
    (want_logits, all_outputs, few_bits), numbers = head[:3], head[3:]
    token_ids, positions, slots = (_tensor(part, torch.int64) for part in parts[1:4])
    qo_indptr, *tables = (_tensor(part, torch.int32) for part in parts[4:8])
    output_indptr, outputs = _tensor(parts[8], torch.int32), _tensor(parts[9], torch.int64)
    stored = (_tensor(part, torch.int64) for part in parts[11:13])
    plain = PlainPages(_tensor(parts[10], torch.int32), *stored)
    places = _tensor(parts[13], torch.int64)
    fed = Fed(places, torch.zeros_like(places), torch.zeros(1, dtype=torch.int64, device=device))
    chosen = [_tensor(part, torch.int64) for part in parts[14:]]
    inputs = StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        attention=AttentionMetadata(qo_indptr, *tables),
        outputs=None if all_outputs else outputs,
        output_attention=AttentionMetadata(output_indptr, *tables),
        output_ends=(),
        adapters=tuple(
            AdapterTokens(adapters[int(number)], *chosen[2 * i : 2 * i + 2])
            for i, number in enumerate(numbers)
        ),
        plain=plain if few_bits else None,
        fed=fed if len(places) else None,
    )
    return inputs, bool(want_logits)


def _message(kind: Kind, parts: Sequence[Tensor]) -> bytes:
    """int64 words: the kind, the number of parts and their bytes; then the parts."""
    raw = [part.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for part in parts]
    head = np.array([kind, len(raw), *map(len, raw)], dtype=np.int64)
    return b"".join([head.tobytes(), *raw])


def _open(message: bytes) -> tuple[Kind, list[memoryview]]:
    kind, count = np.frombuffer(message, np.int64, 2).tolist()
    lengths = np.frombuffer(message, np.int64, count, 16).tolist()
    parts, start = [], 16 + 8 * count
    for length in lengths:
        parts.append(memoryview(message)[start : start + length])
        start += length
    return Kind(kind), parts


def _tensor(part: memoryview, dtype: torch.dtype) -> Tensor:
    """A copy, since kernels want their numbers aligned."""
    if not len(part):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(part), dtype=dtype)
