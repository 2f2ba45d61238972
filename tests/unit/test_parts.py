"""The parts of the slow tests: each test module has one, nothing in their file is out of date, and CI takes turns."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from tests.support.parts import POSTGRES, ROOT, Part, files_of, load_parts, modules, owners
from tests.support.run_parts import Green, affected, clean_commit, due, processor, read_table, stale, write_pass

PARTS = load_parts()
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def part(name: str, minutes: float = 1.0, watch: str = "", needs: str = "sh") -> Part:
    return Part(name, "", minutes, (watch,), needs=((needs,),))


def green(*, days: int, commit: str = "c0ffee", seconds: int = 60) -> Green:
    return Green(commit, (NOW - timedelta(days=days)).isoformat(), "AMD EPYC, 2 cores", seconds, 100, 7, 0)


def repository_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_the_slow_tests_of_each_module_belong_to_one_part() -> None:
    assert [file for file in modules() if len(owners(file, PARTS)) != 1] == []


def test_the_longest_glob_decides() -> None:
    assert owners("tests/e2e/test_chaos.py", PARTS) == ["chaos"]
    assert owners("tests/e2e/test_new.py", PARTS) == ["jobs"]
    assert owners("benchmarks/job.py", PARTS) == []


@pytest.mark.slow
def test_every_part_runs_modules_and_every_glob_matches_a_file() -> None:
    files = repository_files()
    for each in PARTS.values():
        assert files_of(each.name), each.name
        unmatched = [glob for glob in (*each.tests, *each.watch) if not any(fnmatchcase(file, glob) for file in files)]
        assert unmatched == [], each.name
    assert not PARTS[POSTGRES].tests, "it has the slow variants on Postgres of all modules"
    assert max(each.minutes for each in PARTS.values()) <= 30


def test_the_nightly_workflow_runs_every_part_and_may_only_read() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == list(PARTS)
    assert workflow["permissions"] == {"contents": "read"}


def test_the_table_names_parts_that_there_are() -> None:
    assert set(read_table(ROOT / "tests" / "parts-green.json")) <= set(PARTS)


def test_a_pass_is_entered_beside_the_others(tmp_path: Path) -> None:
    file = tmp_path / "green.json"
    assert read_table(file) == {}
    write_pass(file, "b", green(days=2))
    write_pass(file, "a", green(days=1))
    write_pass(file, "b", green(days=0))
    assert read_table(file) == {"a": green(days=1), "b": green(days=0)}
    assert "cores" in processor()


def test_ci_runs_the_oldest_part_that_fits_and_another_by_turns() -> None:
    parts = [part("old"), part("new"), part("newer"), part("long", 9.0), part("unable", needs="no-such-program")]
    table = {"old": green(days=3), "new": green(days=2), "newer": green(days=1)}

    def names(budget: float, turn: int = 0) -> list[str]:
        return [each.name for each in due(parts, table, budget, turn)]

    assert names(2.0) == ["old", "new"]
    assert names(2.0, turn=1) == ["old", "newer"]
    assert names(1.5) == ["old"]
    assert names(10.0) == ["long", "old"]
    assert names(0.5) == []
    slower = {**table, "old": green(days=3, seconds=600)}
    assert due(parts, slower, 2.0, 0)[0].name == "new", "a measurement replaces the estimate"


def test_parts_not_green_for_a_week_are_named() -> None:
    table = {"fresh": green(days=7), "old": green(days=8)}
    lines = stale([part("fresh"), part("old"), part("never")], table, NOW)
    assert [line.split()[0] for line in lines] == ["old", "never"]


def test_a_part_is_affected_by_what_it_watches(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def commit() -> str:
        git("add", ".")
        git("commit", "-qm", "change")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "app.py").write_text("")
    first = commit()
    (tmp_path / "README.md").write_text("")
    second = commit()
    parts = [part("code", watch="gateway/*"), part("texts", watch="*.md"), part("never")]
    table = {"code": green(days=1, commit=first), "texts": green(days=1, commit=first)}
    assert affected(parts, table, tmp_path) == ["texts", "never"]
    assert affected(parts, table, tmp_path, base=second) == []
    assert clean_commit(tmp_path) == second
    (tmp_path / "gateway" / "new.py").write_text("")
    assert affected(parts, table, tmp_path, base=second) == ["code"], "a file that git does not know yet"
    assert clean_commit(tmp_path) is None
    lost = {"code": green(days=1, commit="0" * 40)}
    assert affected(parts[:1], lost, tmp_path) == ["code"], "nobody knows what changed since"
