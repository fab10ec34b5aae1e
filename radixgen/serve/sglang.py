"""`sampling_params` as SGLang names them, in the words that the other routes share."""

from typing import Any, Literal

from radixgen.serve.fields import Closed, ConstraintFields, SamplingFields


class SglangSampling(Closed):
    """How tokens are drawn, and the constraint, of `POST /generate`."""

    max_new_tokens: int | None = 128
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    token_healing: bool | None = None
    constrained_law: Literal["masked", "faithful"] | None = None
    grammar_mass: bool | None = None
    no_stop_trim: bool | None = None
    n: int | None = None
    sampling_seed: int | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, Any] | str | None = None

    def common(self) -> SamplingFields:
        """The fields that other routes have too."""
        fields = {
            name: getattr(self, name)
            for name in SamplingFields.model_fields
            if name in SglangSampling.model_fields
        }
        fields |= {"min_tokens": self.min_new_tokens, "seed": self.sampling_seed}
        return SamplingFields(**fields)

    def constraint(self) -> ConstraintFields:
        return ConstraintFields(
            json_schema=self.json_schema,
            regex=self.regex,
            ebnf=self.ebnf,
            structural_tag=self.structural_tag,
        )
