"""Tests of freehold_run with real VMs. FREEHOLD names the command.

    python3 -m unittest discover integrations/pytest/tests
"""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from freehold_run import Freehold, FreeholdError  # noqa: E402


class Runs(unittest.TestCase):
    def setUp(self):
        self.freehold = Freehold(options=["--accel", "tcg"])

    def test_streams_status_and_files_are_those_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            poem = Path(folder) / "poem"
            poem.write_text("a\nb\n")
            line = "cat; wc -l < /poem; echo no >&2; exit 4"
            run = self.freehold.run("busybox", "ash", "-c", line, input=b"in\n", files={"/poem": poem})
        self.assertEqual((run.status, run.outcome), (4, "exit"))
        self.assertEqual((run.stdout, run.stderr), (b"in\n2\n", b"no\n"))
        self.assertEqual(run.record["audit"], "ok")
        run.check(4)
        with self.assertRaisesRegex(AssertionError, "exit 4, expected exit 0"):
            run.check()

    def test_a_time_out_is_a_result_and_a_missing_program_an_error(self):
        run = self.freehold.run("busybox", "sleep", "100", timeout=6)
        self.assertEqual((run.outcome, run.status), ("timeout", 124))
        with self.assertRaisesRegex(FreeholdError, "no-such-program"):
            self.freehold.run("no-such-program")
        with self.assertRaisesRegex(FreeholdError, "no/such/freehold"):
            Freehold("/no/such/freehold").run("busybox")


if __name__ == "__main__":
    unittest.main()
