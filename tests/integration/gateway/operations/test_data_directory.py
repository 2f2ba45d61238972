"""Commands beside an embedded system: they find its database and services, and reading creates no database."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embedded.directory import lock
from gateway.commands import app
from gateway.operations.data_directory import directory_of, listed_services, settings_of, stored_in
from gateway.settings import Settings
from gateway.web.image_pages import replay_command
from shared.schemas.service import SERVICES, ServiceName

URLS: dict[ServiceName, str] = {name: f"http://127.0.0.1:{9000 + number}" for number, name in enumerate(SERVICES)}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no settings in the environment."""
    for name in ("DATABASE_URL", "OBJECT_STORE", "CAPTION_URL", "LLM_URL", "DIFFUSION_URL", "EVALUATOR_URL"):
        monkeypatch.delenv(f"CONTRAFACT_{name}", raising=False)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with a database, in which no system runs."""
    directory = tmp_path / "my data"
    with lock(directory):
        (directory / "contrafact.db").touch()
    return directory


@pytest.mark.parametrize(
    "command", ["replay abc", "keys list", "doctor", "housekeeping", "replay --directory . abc"], ids=lambda c: c
)
def test_reading_creates_no_database(elsewhere: Path, command: str) -> None:
    """`contrafact replay` left an empty contrafact.db in the working folder."""
    ended = CliRunner().invoke(app, shlex.split(command))
    assert ended.exit_code != 0
    assert not list(elsewhere.glob("*.db*"))


def test_services_and_profile_are_those_of_the_running_system(directory: Path) -> None:
    with lock(directory), listed_services(directory, "modern", URLS):
        settings = settings_of(directory)
    assert settings.service_urls == URLS
    assert settings.profile == "modern", "the environment names none, and tiny is only the default"
    assert settings.database_url == f"sqlite:///{directory}/contrafact.db"
    assert directory_of(settings) == directory


def test_a_system_that_is_still_starting_is_not_replaced_by_services_of_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One URL in the environment, and the command used the environment's profile and services without a word."""
    monkeypatch.setenv("CONTRAFACT_LLM_URL", "http://127.0.0.1:9900")
    with lock(directory), pytest.raises(SystemExit, match="still starting"):
        settings_of(directory)


def test_after_a_crash_the_listed_services_are_not_asked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listed_services(directory, "tiny", URLS), pytest.raises(SystemExit, match="contrafact serve --directory"):
        settings_of(directory)
    monkeypatch.setenv("CONTRAFACT_LLM_URL", "http://127.0.0.1:9900")
    with listed_services(directory, "modern", URLS):
        assert settings_of(directory).llm_url == "http://127.0.0.1:9900"


def test_a_page_prints_the_command_of_its_system(directory: Path) -> None:
    command = replay_command(Settings(**stored_in(directory)), "abc")
    assert shlex.split(command) == ["contrafact", "replay", "--directory", str(directory), "abc"]
    assert replay_command(Settings(database_url="postgresql+psycopg://u@h/n"), "abc") == "contrafact replay abc"
