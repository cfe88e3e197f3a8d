"""Tests of the plugin itself, in a pytest of its own. FREEHOLD names the command.

    PYTHONPATH=integrations/pytest/src python3 -m pytest -p pytest_freehold integrations/pytest/tests/test_plugin.py
"""

pytest_plugins = ["pytester"]

TESTS = """
def test_good(freehold):
    assert freehold.run("busybox", "echo", "hi").check().stdout == b"hi\\n"

def test_bad(freehold):
    freehold.run("busybox", "ash", "-c", "echo told >&2; exit 9").check()
"""


def test_a_failure_shows_the_runs_of_its_test(pytester):
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nfreehold_options = --accel tcg -m 64M\n")
    result = pytester.runpytest("-p", "pytest_freehold", "--freehold-kernel", "freehold")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*freehold run 1*", "busybox: exit 9", "told"])


def test_the_options_reach_the_command(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "pytest_freehold", "--freehold", "/no/such/command")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*No such file or directory: '/no/such/command'*"])
