"""Settings are flat names for callers and frozen parts inside."""

import math
from pathlib import Path
from typing import Any

import pytest

from radixgen.config import RuntimeConfig, from_settings, from_wire, setting_names, to_wire
from radixgen.errors import ConfigError


def test_settings_find_their_parts() -> None:
    config = from_settings(model=Path("m"), page_size=8, policy="lpm", prefix_cache=False)
    assert config.model.model == "m"
    assert (config.cache.page_size, config.cache.enabled) == (8, False)
    assert config.schedule.policy == "lpm"
    assert from_settings() == RuntimeConfig()


def test_flat_names_are_unambiguous() -> None:
    names = setting_names()
    assert len(set(names.values())) == len(names)
    assert "enabled" not in names


def test_the_wire_keeps_everything() -> None:
    config = from_settings(max_context=99, kv_dtype="bfloat16", ageing=0.25, check=True)
    assert from_wire(to_wire(config)) == config
    with pytest.raises(ConfigError):
        from_wire(b"{")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("polcy", "fair", "did you mean 'policy'"),
        ("enabled", True, "no setting 'enabled'"),
        ("policy", "best", "policy='best'"),
        ("page_size", "16", "page_size='16'"),
        ("page_size", 0, "1 to 1024"),
        ("num_pages", 0, "num_pages"),
        ("memory_fraction", math.nan, "memory_fraction"),
        ("max_context", -5, "max_context"),
        ("threads", 0, "threads"),
        ("threads", 10_000, "1 to 1024"),
        ("tensor_parallel", 0, "1 to 64 ranks"),
        ("tensor_parallel", 65, "1 to 64 ranks"),
        ("tensor_split", "rows", "tensor_split='rows'"),
        ("max_total_tokens", -3, "max_total_tokens"),
        ("deterministic", True, "no setting"),
        ("kv_dtype", "int3", "kv_dtype"),
        ("prefix_cache", 3, "prefix_cache=3"),
        ("model", None, "model=None"),
        ("model", object(), "of a type"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_settings(**{name: value})
