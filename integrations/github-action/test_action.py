"""Executes the steps of action.yml as GitHub's runner does, with real VMs. Needs PyYAML.

    python3 -m unittest discover integrations/github-action
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml

ACTION = Path(__file__).parent / "action.yml"


def steps(inputs):
    """Returns each step's script and environment, with the inputs in their places."""
    action = yaml.safe_load(ACTION.read_text())
    given = {name: inputs.get(name, about.get("default")) for name, about in action["inputs"].items()}
    missing = [name for name, value in given.items() if value is None]
    assert not missing, missing

    def fill(text):
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)

    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash" and "${{" not in step["run"], "inputs reach scripts by the environment only"
        yield step["run"], {name: fill(value) for name, value in step.get("env", {}).items()}


class Action(unittest.TestCase):
    def run_action(self, **inputs):
        """Returns the status of the last step that ran, its output, and the action's outputs."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = Path(folder) / "outputs"
            outputs.touch()
            runner = {"GITHUB_ACTION_PATH": str(ACTION.parent), "GITHUB_OUTPUT": str(outputs)}
            for script, own in steps(inputs):
                # As the runner starts bash.
                words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
                done = subprocess.run(words, cwd=folder, env={**os.environ, **runner, **own}, capture_output=True, text=True)
                if done.returncode != 0:
                    break
            told = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
            return done.returncode, done.stdout, told

    def test_a_program_s_output_and_end_are_the_step_s(self):
        status, output, told = self.run_action(run="busybox echo 'one  two'", options="-m 64M --accel tcg")
        self.assertEqual((status, output), (0, "one  two\n"))
        self.assertEqual(told, {"outcome": "exit", "sentence": "busybox: exit 0"})

    def test_a_failure_fails_the_step_and_says_how_it_ended(self):
        status, _, told = self.run_action(run="busybox ash -c 'exit 7'", options="--accel tcg")
        self.assertEqual((status, told["outcome"], told["sentence"]), (7, "exit", "busybox: exit 7"))

    def test_every_output_comes_from_the_step_that_writes_it(self):
        action = yaml.safe_load(ACTION.read_text())
        for name, output in action["outputs"].items():
            self.assertEqual(output["value"], "${{ steps.run.outputs.%s }}" % name)
        self.assertEqual([step.get("id") for step in action["runs"]["steps"]], [None, "run"])


if __name__ == "__main__":
    unittest.main()
