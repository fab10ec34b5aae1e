"""How a runtime starts and ends: refused settings, slow starts, draining, untimely calls."""

import contextlib
import threading
from pathlib import Path

import pytest
from helpers import write_tiny_model
from test_runtime import CONTEXT, GREEDY, LONG, is_idle, wait_until

from radixgen import (
    ConfigError,
    FinishReason,
    ModelNotFound,
    Runtime,
    RuntimeUnavailable,
    UnsupportedModel,
)
from radixgen.launch import RuntimeProcess, make_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT)


def test_wrong_settings_and_models_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'page_size'"):
        Runtime(page_sizes=3)
    with pytest.raises(ModelNotFound, match="no such file"):
        Runtime(tmp_path / "nothing").start()
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": ["M"]}')
    with pytest.raises((UnsupportedModel, ModelNotFound), match=r"mamba|tokenizer"):
        Runtime(tmp_path).start()


def test_a_fault_of_the_child_is_raised_here(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_context=9999999"):
        Runtime(model, max_context=9_999_999).start()
    with pytest.raises(ConfigError, match=r"KV pages"):
        Runtime(model, num_pages=1 << 40).start()


def test_a_wrong_log_level_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXGEN_LOG", "loud")
    with pytest.raises(ConfigError, match="RADIXGEN_LOG='loud'"):
        Runtime()


def test_a_process_stopped_while_it_starts_is_ended(model: Path) -> None:
    process = RuntimeProcess(make_config(model))
    process.kill()
    with pytest.raises(RuntimeUnavailable, match="stopped while it started"):
        process.start(30)
    assert process.pid is not None
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_slow_start_is_given_up(model: Path) -> None:
    runtime = Runtime(model, start_timeout=0.01)
    with pytest.raises(RuntimeUnavailable, match=r"not ready within 0.01 s"):
        runtime.start()


def test_before_and_after_calls_are_refused(model: Path) -> None:
    runtime = Runtime(model, num_pages=50, threads=1)
    with pytest.raises(RuntimeUnavailable, match="not started"):
        runtime.generate("x", GREEDY)
    with pytest.raises(RuntimeUnavailable, match="not started"):
        runtime.address  # noqa: B018
    with runtime:
        folder = Path(runtime.address).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    with pytest.raises(RuntimeUnavailable, match="shut down"):
        runtime.generate("x", GREEDY)
    runtime.shutdown()


def test_draining_lets_open_requests_finish(model: Path) -> None:
    runtime = Runtime(model, num_pages=300, threads=1).start()
    results = []
    worker = threading.Thread(target=lambda: results.append(runtime.generate("x", LONG)))
    worker.start()
    wait_until(lambda: not is_idle(runtime))
    runtime.shutdown(drain=True, timeout=200)
    worker.join(200)
    assert results[0].finish_reason is FinishReason.LENGTH
    assert len(results[0].token_ids) == 3000


def test_ending_without_draining_aborts(model: Path) -> None:
    runtime = Runtime(model, num_pages=300, threads=1).start()
    pieces = runtime.generate("x", LONG, stream=True)
    next(pieces)
    runtime.shutdown()
    with contextlib.suppress(RuntimeUnavailable):  # if the loop ended before they were fetched
        assert list(pieces)[-1].result is not None
