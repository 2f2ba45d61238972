"""A plugin of pytest: what each test costs in CPU seconds, of this process and of the child processes that ended.

A test has the cost of its own fixtures. Fixtures of a wider scope count for its folder. In CI a test outside the list
of keystones in CONTRIBUTING.md fails the run if it costs more than `ALARM`, then and alone: mark it slow, or make it
cheaper.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

# CPU seconds. The rule is one (CONTRIBUTING.md); the first test in a process pays for what is kept.
ALARM = 4.0
_DEAREST = 15
_ROOT = Path(__file__).parents[2]
_OWN, _SHARED = "cpu_seconds", "shared_cpu_seconds"


def spent() -> float:
    """CPU seconds of this process, its threads, and its children that were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def keystones() -> set[str]:
    """The node ids in CONTRIBUTING.md, without parameters."""
    return set(re.findall(r"`([\w/]+\.py::\w+)`", (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


class Shared:
    """The CPU seconds of what several tests share: fixtures of a wider scope, and snapshots."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._since = 0.0

    def enter(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._since = spent()

    def leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += spent() - self._since

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count the block as shared, once where blocks are nested."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


SHARED = Shared()


class CpuSeconds:
    """Measures tests in the process that runs them, and reports in the one that collects the results."""

    def __init__(self, file: IO[str] | None) -> None:
        self.file = file
        self.began = 0.0
        self.shared_before = 0.0
        self.tests: dict[str, float] = {}
        self.folders: defaultdict[str, float] = defaultdict(float)
        self.workers = 0.0
        self.too_dear: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self.began, self.shared_before = spent(), SHARED.seconds
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        fixturedef.addfinalizer(SHARED.leave)  # runs last of its finalizers
        try:
            with SHARED.measured():
                return (yield)
        finally:
            fixturedef.addfinalizer(SHARED.enter)  # runs first

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown":
            shared = SHARED.seconds - self.shared_before
            item.user_properties += [(_OWN, spent() - self.began - shared), (_SHARED, shared)]
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        measured = dict(report.user_properties)
        if report.when == "teardown" and _OWN in measured:
            own, shared = float(str(measured[_OWN])), float(str(measured[_SHARED]))
            self.tests[report.nodeid] = own
            self.folders[_folder(report.nodeid)] += own + shared
            if self.file is not None:
                print(f"{own:.3f}\t{shared:.3f}\t{report.nodeid}", file=self.file, flush=True)

    def pytest_testnodedown(self, node: Any) -> None:
        self.workers += getattr(node, "workeroutput", {}).get(_OWN, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[_OWN] = spent()
        elif (
            os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK and not session.config.getoption("--part")
        ):
            self.too_dear = too_dear(self.tests, keystones(), measure_alone)
            if self.too_dear:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds")
        for folder, seconds in sorted(self.folders.items()):
            write(f"{seconds:8.1f}  {folder}")
        tests = sum(self.folders.values())
        times = os.times()  # without children: the workers have reported what they spent
        everything = self.workers + times.user + times.system if self.workers else spent()
        write(f"{tests:8.1f}  in tests; {everything:.1f} with imports and collection")
        for name, seconds in sorted(self.tests.items(), key=lambda test: -test[1])[:_DEAREST]:
            write(f"{seconds:8.1f}  {name}")
        for name in self.too_dear:
            write(
                f"over {ALARM:g} CPU seconds, alone too: mark {name} slow, make it cheaper, or add it to the keystones"
            )


def too_dear(costs: Mapping[str, float], listed: Set[str], alone: Callable[[str], float]) -> list[str]:
    """The tests over `ALARM` CPU seconds that are no keystones, then and `alone`: its neighbours may slow a test."""
    dear = [name for name, cost in costs.items() if cost > ALARM and name.partition("[")[0] not in listed]
    return [name for name in dear if alone(name) > ALARM]


def measure_alone(test: str) -> float:
    """The CPU seconds of a test that runs in a process of its own. Raises if it fails there."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--cpu-seconds={file.name}", test]
        subprocess.run(command, cwd=_ROOT, env={**os.environ, "CI": ""}, stdout=subprocess.DEVNULL, check=True)
        return float(file.readline().partition("\t")[0])


def _folder(nodeid: str) -> str:
    return "/".join(nodeid.split("::")[0].split("/")[:3][:-1] or ["tests"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", help="write each test's CPU seconds, and its wider fixtures'")


def pytest_configure(config: pytest.Config) -> None:
    path = None if hasattr(config, "workerinput") else config.getoption("--cpu-seconds")
    file = open(path, "w", encoding="utf-8") if path else None  # noqa: SIM115  # closed with the process
    config.pluginmanager.register(CpuSeconds(file), "cpu seconds of tests")
