"""The operator's commands, on the deployment itself, with its environment: `keys`, `doctor`, `replay`, `housekeeping`.

python -m gateway.commands keys create ann      # what `contrafact keys create ann` becomes
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from gateway.auth.keys import KeyRefused, Limits, create_key, list_keys, revoke_key, scopes_of
from gateway.database.sessions import DATABASE_AWAY, Sessions, driver_message, open_engine, open_sessions
from gateway.model_services.clients import ModelServices
from gateway.operations.data_directory import settings_of
from gateway.operations.doctor import examine
from gateway.operations.housekeeping import Graces, graces_of, run_housekeeping
from gateway.operations.startup import refuse_wrong_schema
from gateway.settings import Settings, read_settings
from gateway.storage.object_store import open_store
from gateway.trial.steps import verdict_line
from gateway.trial.try_image import TrialImage, trial_page
from gateway.trial.try_image import try_image as run_trial
from gateway.worker.replay import replay as make_again
from shared.problems import Problem
from shared.profiles.profile import ProfileError, load_profile

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
keys = typer.Typer(help="API keys, in the database of CONTRAFACT_DATABASE_URL.", no_args_is_help=True)
app.add_typer(keys, name="keys")
messages = Console(stderr=True, soft_wrap=True)

DEFAULT_SCOPES = ["submit", "review"]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, for machines")]
Directory = Annotated[
    Path | None,
    typer.Option(help="of `contrafact serve`: takes its database, images, profile and services, not the environment's"),
]


@keys.command()
def create(
    owner: Annotated[str, typer.Argument(help="the owner whose data the key opens; created if new")],
    scope: Annotated[
        list[str] | None, typer.Option(help="submit, review, admin (all of it, and /metrics); default: submit, review")
    ] = None,
    name: Annotated[str, typer.Option(help="what the key is for")] = "",
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="default: the installation's")] = None,
    bytes_per_hour: Annotated[int | None, typer.Option(min=1, help="default: the installation's")] = None,
    max_request_bytes: Annotated[int | None, typer.Option(min=1, help="largest single request")] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="read the key from stdin; repeating it for the same owner changes nothing")
    ] = False,
) -> None:
    """Create a key and print it once: only its hash is stored."""
    limits = Limits(requests_per_minute, bytes_per_hour, max_request_bytes)
    own_key = sys.stdin.read().strip() if stdin else None
    with _transaction() as session:
        key = create_key(session, owner, scopes_of(scope or DEFAULT_SCOPES), name=name, limits=limits, key=own_key)
    if not stdin:
        print(key)
        messages.print("Save it: it is shown only once.")


@keys.command("list")
def list_all(as_json: Json = False) -> None:
    """List the keys with owner, name, scopes and time of last use."""
    with _transaction() as session:
        rows = list_keys(session)
    if as_json:
        print(json.dumps([asdict(key) for key in rows], default=str))
        return
    table = Table("id", "owner", "for", "may", "made", "last used", "revoked", box=None)
    for key in rows:
        times = [f"{time:%Y-%m-%d %H:%M}" if time else "" for time in (key.created_at, key.used_at, key.revoked_at)]
        table.add_row(key.id, key.owner, key.name, ", ".join(key.scopes), *times)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@keys.command()
def revoke(key: Annotated[str, typer.Argument(help="its id, from `keys list`", metavar="ID")]) -> None:
    """Revoke a key and end its logins."""
    with _transaction() as session:
        revoked_now = revoke_key(session, key)
    messages.print("revoked" if revoked_now else "it was already revoked")


@app.command()
def doctor(
    as_json: Json = False,
    try_image: Annotated[
        Path | None,
        typer.Option("--try", exists=True, dir_okay=False, help="then run this image through all services, by steps"),
    ] = None,
    task: Annotated[
        str, typer.Option(help="what your model does, for --try")
    ] = "classify the main object of the photo",
    label: Annotated[str | None, typer.Option(help="the image's class, for --try")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="method of --try, repeatable; default: all that the profile can run"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the pictures and the page of --try")] = Path("trial"),
    directory: Directory = None,
) -> None:
    """Check this deployment. Prints each fault with its fix; exits with code 1 if there is one."""
    settings = _settings(directory)
    fine = True
    for answer in examine(settings):
        fine = fine and answer.fine
        if as_json:
            print(json.dumps(asdict(answer)))
        else:
            print(verdict_line(answer.fine, f"{answer.part}: {answer.sentence}"), flush=True)
    if try_image is not None:
        image = TrialImage(try_image.read_bytes(), task, label)
        fine = _try(settings, image, method or [], out, as_json) and fine
    raise typer.Exit(0 if fine else 1)


def _try(settings: Settings, image: TrialImage, methods: Sequence[str], out: Path, as_json: bool) -> bool:
    """Run one image through every service, print each step, and write the page. Returns whether all steps are fine."""
    services = ModelServices(settings.service_urls, settings.service_deadline_seconds, settings.service_wait_seconds)
    steps = []
    try:
        profile = load_profile(settings.profile)
        for step in run_trial(services, settings.service_urls, profile, image, out, settings.working_side, methods):
            steps.append(step)
            print(json.dumps(asdict(step)) if as_json else step.sentence, flush=True)
    except (Problem, ProfileError) as problem:
        messages.print(f"error: {problem}", style="red", markup=False)
        return False
    finally:
        services.close()
    (out / "index.html").write_text(trial_page(steps, settings.profile), encoding="utf-8")
    messages.print(f"pictures and page: {out / 'index.html'}", markup=False)
    return not any(step.fault for step in steps)


@app.command()
def replay(
    counterfactual: Annotated[str, typer.Argument(help="its id, from results or its page", metavar="ID")],
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Render a counterfactual again and compare it bit for bit. Prints the differences and exits with code 1."""
    with _database(directory) as (settings, sessions):
        services = ModelServices(
            settings.service_urls, settings.service_deadline_seconds, settings.service_wait_seconds
        )
        try:
            comparison = make_again(sessions, open_store(settings), services, counterfactual)
        except Problem as problem:
            messages.print(f"error: {problem.detail}", style="red", markup=False)
            raise typer.Exit(3) from problem
        finally:
            services.close()
    if as_json:
        print(json.dumps({"equal": comparison.equal, **asdict(comparison)}))
    elif comparison.equal:
        print(f"equal, bit for bit; {comparison.calls} calls repeated, {comparison.recorded} of them recorded")
    else:
        print("\n".join(["it differs:", *(f"  {text}" for text in comparison.differences)]))
        if comparison.causes:
            print("\n".join(["possible causes:", *(f"  {text}" for text in comparison.causes)]))
    raise typer.Exit(0 if comparison.equal else 1)


@app.command()
def housekeeping(
    no_grace: Annotated[
        bool, typer.Option("--no-grace", help="without a grace period; only while no gateway or worker runs")
    ] = False,
) -> None:
    """Remove unreferenced rows and objects; print their numbers as JSON."""
    with _database() as (settings, sessions):
        graces = Graces(0.0, 0.0) if no_grace else graces_of(settings)
        removed = run_housekeeping(sessions, open_store(settings), graces)
    print(json.dumps(asdict(removed)))


def _settings(directory: Path | None) -> Settings:
    """The settings of the environment, or of an embedded system's directory."""
    return read_settings() if directory is None else settings_of(directory)


@contextmanager
def _database(directory: Path | None = None) -> Iterator[tuple[Settings, Sessions]]:
    """Settings and database of the environment, or of an embedded system's directory.

    An error of the database ends the command with exit code 3.
    """
    settings = _settings(directory)
    engine = open_engine(settings.database_url)
    sessions = open_sessions(engine)
    try:
        refuse_wrong_schema(settings, sessions)
        yield settings, sessions
    except (*DATABASE_AWAY, ProgrammingError) as error:
        messages.print(f"error: the database refuses: {driver_message(error)}", style="red", markup=False)
        raise typer.Exit(3) from error
    finally:
        engine.dispose()


@contextmanager
def _transaction() -> Iterator[Session]:
    """One transaction on the environment's database. A refused key ends the command with exit code 2."""
    with _database() as (_, sessions):
        try:
            with sessions.begin() as session:
                yield session
        except KeyRefused as error:
            messages.print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(2) from error


if __name__ == "__main__":
    app(prog_name="contrafact")
