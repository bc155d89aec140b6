"""Lists unit tests that take much CPU time. It does not fail them: on a shared machine CPU time varies by half."""

import os
from collections.abc import Generator, Sequence

import pytest

LIMIT_SECONDS = 2.0
_KEY = "cpu_seconds"


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    return sum(os.times()[:4])


class CpuTimes:
    """A pytest plugin. Only the test itself is measured, since the fixture of a trained run is shared by many tests."""

    def __init__(self, tiers: Sequence[str]) -> None:
        self.tiers = tiers

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        before = cpu_seconds()
        try:
            return (yield)
        finally:
            item.user_properties.append((_KEY, cpu_seconds() - before))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if slow := self._slow(terminalreporter):
            terminalreporter.section(f"unit tests over {LIMIT_SECONDS:g} s of CPU time; mark them e2e or shorten them")
            for seconds, test in slow:
                terminalreporter.line(f"{seconds:6.1f} s  {test}")

    def _slow(self, reporter: pytest.TerminalReporter) -> list[tuple[float, str]]:
        """The slowest first."""
        found = [
            (float(dict(report.user_properties).get(_KEY, 0.0)), report.nodeid)
            for report in reporter.stats.get("passed", [])
            if report.when == "call" and not any(tier in report.keywords for tier in self.tiers)
        ]
        return sorted([each for each in found if each[0] > LIMIT_SECONDS], reverse=True)
