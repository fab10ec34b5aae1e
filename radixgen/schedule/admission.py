"""Refuses at once what can never run: the reason names the thing, the limit and the way out."""

from radixgen.config import ScheduleConfig
from radixgen.errors import InvalidRequest, Overloaded, PromptTooLong
from radixgen.schedule.request import Request, StopFactory


class Admission:
    """The limits that a request must keep before it may wait. `max_known`: tokens a sequence."""

    def __init__(
        self,
        config: ScheduleConfig,
        vocab_size: int,
        max_known: int,
        stop_factory: StopFactory | None,
    ) -> None:
        self.max_queue = config.max_queue
        self.vocab_size = vocab_size
        self.max_known = max_known
        self.stop_factory = stop_factory

    def check(self, request: Request, num_waiting: int, retry_after: float) -> None:
        """Raises InvalidRequest, PromptTooLong or Overloaded."""
        if num_waiting >= self.max_queue:
            raise Overloaded(
                f"{num_waiting} requests are waiting, the most allowed (max_queue): "
                f"retry in {retry_after:.0f} s",
                retry_after,
            )
        if not request.prompt_ids:
            raise InvalidRequest("the prompt is empty: give at least one token", "prompt")
        self._check_length(request)
        self._check_ids(request)
        self._check_sampling(request)

    def _check_length(self, request: Request) -> None:
        longest = max((len(ids) for ids in request.continuations or ()), default=0)
        room = 0 if request.continuations or request.sampling.max_tokens == 0 else 1
        total = len(request.prompt_ids) + longest + room
        if total > self.max_known:
            what = f"{longest} of its longest continuation" if longest else "one to generate"
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens and with {what} exceeds the "
                f"{self.max_known} that the context and the KV pages can hold: shorten it, or "
                "start the runtime with a larger max_context, num_pages or max_total_tokens",
                "prompt",
            )

    def _check_ids(self, request: Request) -> None:
        for ids in (request.prompt_ids, *(request.continuations or ())):
            if not ids:
                raise InvalidRequest("a continuation is empty: give at least one token", "lengths")
            if min(ids) < 0 or max(ids) >= self.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self.vocab_size)
                raise InvalidRequest(
                    f"token id {bad} is not in the vocabulary of {self.vocab_size} tokens", "prompt"
                )

    def _check_sampling(self, request: Request) -> None:
        if request.continuations is not None and not request.continuations:
            raise InvalidRequest("no continuations to score: give at least one", "lengths")
        sampling = request.sampling
        for token_id in (*sampling.stop_token_ids, *(i for i, _ in sampling.logit_bias)):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is not in the vocabulary of {self.vocab_size} tokens",
                    "stop_token_ids" if token_id in sampling.stop_token_ids else "logit_bias",
                )
        if sampling.stop and self.stop_factory is None:
            raise InvalidRequest("stop strings need a tokenizer and the runtime has none", "stop")
