"""The fixture `freehold`: runs programs in microVMs, and shows each failed test's runs."""

import shlex

import pytest

from freehold_run import Freehold, FreeholdError, Run

__all__ = ["Freehold", "FreeholdError", "Run", "freehold"]


def pytest_addoption(parser):
    group = parser.getgroup("freehold")
    group.addoption("--freehold", metavar="FILE", help="the command freehold (default: $FREEHOLD, or as found on PATH)")
    group.addoption("--freehold-kernel", metavar="KERNEL", help="freehold, linux or a kernel file")
    parser.addini("freehold_options", "further options of each freehold run", default="")


class Recorded(Freehold):
    """Remembers its runs for the report of a test."""

    def __init__(self, command, options):
        super().__init__(command, options)
        self.runs = []

    def run(self, *program, **how):
        run = super().run(*program, **how)
        self.runs.append(run)
        return run


@pytest.fixture
def freehold(request):
    """Runs programs in VMs: freehold.run("busybox", "true").check()."""
    options = shlex.split(request.config.getini("freehold_options"))
    kernel = request.config.getoption("--freehold-kernel")
    if kernel:
        options += ["--kernel", kernel]
    recorded = Recorded(request.config.getoption("--freehold"), options)
    request.node.freehold_runs = recorded.runs
    return recorded


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.when == "call" and report.failed:
        for number, run in enumerate(getattr(item, "freehold_runs", []), 1):
            text = run.record["sentence"] + "\n" + run.stderr.decode(errors="replace")
            report.sections.append((f"freehold run {number}", text))
