"""Decodes of the same shape by vLLM and SGLang, where they are installed: random weights too.

Each runs in a process of its own, so that it finds the device's memory free and may fail by itself.
"""

import json
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path

from radixgen.model.config import DecoderConfig

SECONDS = 150.0  # to start, compile and measure

_ENDS = """
import json, sys, time
from pathlib import Path
folder, requests, prompt, steps = sys.argv[1], *map(int, sys.argv[2:])
prompts = [[(7 * i + 31 * n) % 30000 for i in range(prompt)] for n in range(requests)]

def measure(generate):
    generate(2)
    times = []
    for count in (1, steps + 1):
        begin = time.perf_counter()
        generate(count)
        times.append(time.perf_counter() - begin)
    print(json.dumps({"step": (times[1] - times[0]) / steps}))

if __name__ == "__main__":
"""

SCRIPTS = {
    "vllm": """
    from vllm import LLM, SamplingParams
    engine = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                 max_model_len=prompt + steps + 64, enable_prefix_caching=False)
    given = [{"prompt_token_ids": ids} for ids in prompts]
    measure(lambda count: engine.generate(given, SamplingParams(
        temperature=0.8, top_p=0.95, max_tokens=count, ignore_eos=True, detokenize=False)))
""",
    "sglang": """
    import sglang
    engine = sglang.Engine(model_path=folder, load_format="dummy", skip_tokenizer_init=True,
                           dtype="bfloat16", disable_radix_cache=True)
    measure(lambda count: engine.generate(input_ids=prompts, sampling_params={
        "temperature": 0.8, "top_p": 0.95, "max_new_tokens": count, "ignore_eos": True}))
    engine.shutdown()
""",
}


def installed() -> list[str]:
    """Those that this Python can import."""
    return [name for name in SCRIPTS if util.find_spec(name) is not None]


def step_seconds(
    name: str, config: DecoderConfig, requests: int, prompt: int, steps: int
) -> float | str:
    """Seconds of a step in which all requests decode, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), config)
        script = Path(folder, "measure.py")
        script.write_text(_ENDS + SCRIPTS[name])
        sizes = map(str, (requests, prompt, steps))
        return run(script, folder, *sizes)


def run(script: Path, *arguments: str) -> float | str:
    """The "step" of the last line of JSON that a script prints, or what went wrong."""
    command = [sys.executable, str(script), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no result within {SECONDS:g} s"
    for line in reversed(done.stdout.splitlines()):
        try:
            return float(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"it ended with status {done.returncode}"


def write_config(folder: Path, config: DecoderConfig) -> None:
    """A Hugging Face config.json of the shape; no weights beside it."""
    c = config
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.ffn_size,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_context,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": c.tied_head,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(fields))
