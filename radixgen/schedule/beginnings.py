"""What a sequence begins with: its tokens, and what follows its text. Knows requests, no pages."""

from array import array

from radixgen.schedule.request import Request, SequenceState, StopFactory

_SEEDS = 2**64


def begin(request: Request, index: int, stop_factory: StopFactory | None) -> SequenceState:
    """A choice's sequence, with a matcher and a stop watch of its own."""
    tokens, given_from = array("i", request.prompt_ids), None
    if request.continuations is not None:
        given_from = len(tokens)
        tokens += request.continuations[index]
    elif request.sampling.prompt_logprobs is not None and index == 0 and len(tokens) > 1:
        given_from = 1
    seed = (request.seed + index) % _SEEDS
    sequence = SequenceState(request, index, tokens, len(tokens), seed, given_from=given_from)
    guide(sequence, stop_factory)
    request.sequences.append(sequence)
    return sequence


def guide(sequence: SequenceState, stop_factory: StopFactory | None) -> None:
    """Give a sequence that has no output yet what follows its text."""
    request = sequence.request
    sequence.matcher = None if request.make_matcher is None else request.make_matcher()
    sequence.is_thinking = request.thoughts is not None
    if request.thoughts is not None:
        sequence.answer, sequence.matcher = sequence.matcher, request.thoughts.make_matcher()
    if request.make_law is not None and sequence.law is None:
        sequence.law = request.make_law(sequence.seed)
    if request.sampling.stop and stop_factory is not None:
        sequence.stop_watch = stop_factory(request.sampling, request.num_healed)
