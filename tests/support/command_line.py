"""The command line in this process, against a running gateway."""

from __future__ import annotations

from typer.testing import CliRunner

from contrafact.cli import app


def contrafact(url: str, *arguments: object, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of a command that ends with `code`."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"CONTRAFACT_URL": url})
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr
