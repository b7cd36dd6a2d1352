"""Which tests are dear: `make durations` measures the processor time of each test function.

Those that need `LIMIT` seconds or more are listed in durations.txt. `make test` leaves them to `make test-all`.
A fixture for several tests that needs as much makes all of them dear.
"""

import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

LIMIT = 0.4
"""Seconds of one test function with all its cases."""

FILE = Path(__file__).with_name("durations.txt")


def dear_functions() -> set[str]:
    """The listed functions, as `tests/FOLDER/test_FILE.py::test_NAME`."""
    return {line.split()[1] for line in FILE.read_text(encoding="utf-8").splitlines()}


def function_of(test: str) -> str:
    return test.partition("[")[0]


def processor_time() -> float:
    """Seconds of this process and of the ended ones that it started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Stopwatch:
    """Measures in the process that runs the tests. Their reports carry the times to the process that writes the list."""

    def __init__(self) -> None:
        self.last = 0.0
        self.fixtures: dict[tuple[Path, str], float] = {}  # dear ones, by the file of their tests and their name

    def pytest_runtest_logstart(self) -> None:
        self.last = processor_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        began = processor_time()
        value = yield
        taken = processor_time() - began
        if fixturedef.scope != "function" and taken >= LIMIT:
            self.fixtures[request.path, fixturedef.argname] = taken
            self.last += taken
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_time()
        fixtures = sum(self.fixtures.get((item.path, name), 0.0) for name in item.fixturenames)
        report.user_properties += [("own seconds", now - self.last), ("seconds of fixtures", fixtures)]
        self.last = now
        return report


class Writer:
    """Replaces the lines of the functions that were run. Lines of functions that are gone are removed."""

    def __init__(self) -> None:
        self.own: defaultdict[str, float] = defaultdict(float)
        self.fixtures: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function, measured = function_of(report.nodeid), dict(report.user_properties)
        self.own[function] += float(str(measured["own seconds"]))
        self.fixtures[function] = max(self.fixtures[function], float(str(measured["seconds of fixtures"])))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        taken = [self.own[function] + self.fixtures[function] for function in self.own]
        cheap = [seconds for seconds in taken if seconds < LIMIT]
        terminalreporter.write_line(
            f"{sum(taken):.0f} s of processor time, {sum(cheap):.0f} s of it in {len(cheap)} of {len(taken)} test functions"
        )

    def pytest_sessionfinish(self) -> None:
        taken = {function: self.own[function] + self.fixtures[function] for function in self.own}
        lines = [f"{seconds:.1f} {function}" for function, seconds in taken.items() if seconds >= LIMIT]
        for line in FILE.read_text(encoding="utf-8").splitlines():
            path, _, name = line.split()[1].partition("::")
            if line.split()[1] not in taken and Path(path).exists() and f"def {name}(" in Path(path).read_text():
                lines.append(line)
        FILE.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[1])))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Stopwatch())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer())
