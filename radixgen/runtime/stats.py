"""What the engine counts: seconds of steps, tokens of finished requests. Knows numbers only."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from radixgen.batch import StepResult
from radixgen.messages import RequestFinished, ScoreOutput

SMOOTHING = 0.05  # weight of the newest step in the recent mean


@dataclass(slots=True)
class EngineStats:
    """Totals since the start; the fields' names are those of `Stats`."""

    step_seconds: float = 0.0  # whole steps
    forward_seconds: float = 0.0  # of them, in the model
    sample_seconds: float = 0.0  # of them, drawing tokens
    recent_step_seconds: float = 0.0  # of one step, a mean that forgets
    prompt_tokens: float = 0.0  # of finished requests
    cached_tokens: float = 0.0  # of them, found in the tree
    refused_requests: float = 0.0
    failed_steps: float = 0.0
    overlapped_steps: float = 0.0  # launched before the step before was over
    device_idle_seconds: float = 0.0  # between steps, with work to do; on a GPU

    def add_step(self, seconds: float, result: StepResult) -> None:
        """Count a step that took `seconds`."""
        self.step_seconds += seconds
        self.forward_seconds += result.forward_seconds
        self.sample_seconds += result.sample_seconds
        weight = SMOOTHING if self.recent_step_seconds else 1.0
        self.recent_step_seconds += weight * (seconds - self.recent_step_seconds)

    def add_usages(self, events: Iterable[object]) -> None:
        """Count the tokens of the requests that end in `events`."""
        for event in events:
            if isinstance(event, RequestFinished | ScoreOutput):
                self.prompt_tokens += event.usage.prompt_tokens
                self.cached_tokens += event.usage.cached_tokens

    def values(self) -> dict[str, float]:
        """By name, with `hit_rate`: the cached share of prompt tokens."""
        rate = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return asdict(self) | {"hit_rate": rate}
