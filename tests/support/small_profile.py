"""A profile file over small weights beside it; what a test does not name points at a server that does not exist."""

from __future__ import annotations

from pathlib import Path

NOWHERE = "http://127.0.0.1:9/v1"


def write_profile(
    folder: Path,
    *,
    caption_engine: str = "openai",
    language_engine: str = "openai",
    url: str = NOWHERE,
    model: str = "none",
) -> Path:
    """Write `folder`/small.toml: in-process engines load `folder`/captioner and `folder`/language, others ask `url`."""

    def source(engine: str, name: str) -> str:
        if engine in ("openai", "tgi"):
            return f'server = {{ url = "{url}", model = "{model}", revision = "1", licence = "none", gigabytes = 1 }}'
        return f'weights = {{ path = "{name}", licence = "none", gigabytes = 0.01 }}'

    path = folder / "small.toml"
    path.write_text(
        f"""
[profile]
name = "small"
description = "small weights, not trained"
[caption]
engine = "{caption_engine}"
{source(caption_engine, "captioner")}
[language]
engine = "{language_engine}"
{source(language_engine, "language")}
[diffusion]
base = {{ path = "base", licence = "none", gigabytes = 0.01 }}
controlnets.canny = {{ path = "control", licence = "none", gigabytes = 0.01 }}
[evaluator]
scorer = {{ path = "scorer", licence = "none", gigabytes = 0.01 }}
[defaults]
methods = ["dillema"]
"""
    )
    return path
