"""How `select` decides between options, given the log-probabilities of their tokens.

Pure functions of `Scores`; they know no model. The rules and names are SGLang's.
"""

from collections.abc import Sequence

from radixgen.lang.ir import ChoicesMethod, Decision, Scores


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _best(values: Sequence[float]) -> int:
    """The first of the greatest."""
    return max(range(len(values)), key=lambda index: values[index])


def token_length_normalized(scores: Scores) -> Decision:
    """The highest mean log-probability a token; the default."""
    normalized = [mean(logprobs) for logprobs in scores.conditional]
    return Decision(_best(normalized), {"normalized_prompt_logprobs": normalized})


def greedy_token_selection(scores: Scores) -> Decision:
    """Token by token, the options whose token is likeliest stay; one that is shorter than the
    longest goes on with its own mean."""
    width = max(len(logprobs) for logprobs in scores.conditional)
    matrix = [[*row, *[mean(row)] * (width - len(row))] for row in scores.conditional]
    alive = list(range(len(matrix)))
    for column in range(width):
        best = max(matrix[index][column] for index in alive)
        alive = [index for index in alive if matrix[index][column] == best]
    meta = {
        "normalized_prompt_logprobs": [mean(row) for row in scores.conditional],
        "greedy_logprob_matrix": matrix,
    }
    return Decision(alive[0], meta)


def unconditional_likelihood_normalized(scores: Scores) -> Decision:
    """The greatest mean gain of log-probability over the same option without the prompt."""
    gains = [
        mean([with_prompt - without for with_prompt, without in zip(given, alone, strict=True)])
        for given, alone in zip(scores.conditional, scores.unconditional, strict=True)
    ]
    meta = {
        "normalized_prompt_logprobs": [mean(row) for row in scores.conditional],
        "unconditional_token_logprobs": [list(row) for row in scores.unconditional],
        "normalized_unconditional_prompt_logprobs": gains,
    }
    return Decision(_best(gains), meta)


def needs_unconditional(method: ChoicesMethod) -> bool:
    """Whether the method wants the options scored without the prompt as well."""
    return method is unconditional_likelihood_normalized
