"""Runs programs with `freehold run`, from Python. Needs nothing but the standard library."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

#: Time that this process waits beyond the VM's own deadline, in seconds.
GRACE = 30


class FreeholdError(Exception):
    """There was no run: freehold, QEMU or the guest's kernel failed."""


@dataclass
class Run:
    """A run that took place. `stdout` and `stderr` are bytes."""

    #: The exit status of freehold: the program's own, or 128 and the number of its signal.
    status: int
    stdout: bytes
    stderr: bytes
    #: The record of `freehold run --json` (docs/schema/run.json).
    record: dict = field(repr=False)

    @property
    def outcome(self):
        """How it ended, in a word: exit, signal, oom-kill, timeout, …"""
        return self.record["outcome"]

    def check(self, status=0):
        """Returns the run; fails unless its program called exit with `status`."""
        if (self.outcome, self.record["exit"]) != ("exit", status):
            told = self.stderr.decode(errors="replace")
            raise AssertionError(f"{self.record['sentence']}, expected exit {status}\n{told}")
        return self


#: Ends that say nothing about the program.
NOT_OF_THE_PROGRAM = ("error", "qemu", "firmware", "panic", "audit", "host-signal")


class Freehold:
    """Runs programs, each in a VM of its own.

    `command` is the path of freehold. `options` come before those of each run.
    """

    def __init__(self, command=None, options=()):
        self.command = command or os.environ.get("FREEHOLD", "freehold")
        self.options = list(options)

    def run(self, *program, options=(), files=None, input=b"", timeout=60):
        """Runs `program`, a name and its arguments.

        `files` maps paths of the guest to paths of the host, `options` are further words for
        freehold run, `input` is the program's stdin, `timeout` the VM's deadline in seconds.

        Raises FreeholdError if there was no run, or if its kernel failed. What the program does,
        a time-out included, is the result.
        """
        with tempfile.TemporaryDirectory(prefix="freehold-") as folder:
            path = Path(folder) / "run.json"
            words = [self.command, "run", "--json", str(path), "--timeout", str(timeout)]
            words += self.options + list(options)
            for guest, host in (files or {}).items():
                words += ["-v", f"{Path(host).resolve()}:{guest}"]
            words += ["--", *map(str, program)]
            ended = self._start(words, input, timeout)
            try:
                record = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise FreeholdError(ended.stderr.decode(errors="replace").strip() or str(error))
        if record["outcome"] in NOT_OF_THE_PROGRAM:
            raise FreeholdError(record["sentence"])
        return Run(ended.returncode, ended.stdout, ended.stderr, record)

    @staticmethod
    def _start(words, input, timeout):
        try:
            return subprocess.run(words, input=input, capture_output=True, timeout=timeout + GRACE)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FreeholdError(str(error)) from error
