"""One worker with the demo models for all tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from service.cli import main
from tests.process import Addresses, worker_process


@pytest.fixture(scope="session")
def worker() -> Iterator[Addresses]:
    """Its addresses."""
    with worker_process() as addresses:
        yield addresses


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The printed document."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Runs commands as the console script does."""

    capture: pytest.CaptureFixture[str]
    worker: Addresses | None = None

    def run(self, *words: str) -> Answer:
        """Exit code and output."""
        code = main(words)
        out, err = self.capture.readouterr()
        return Answer(code, out, err)

    def infer(self, *words: str) -> Answer:
        """A command of the inference port."""
        assert self.worker
        return self.run(*words, "--address", self.worker.inference)

    def admin(self, *words: str) -> Answer:
        """A command of the admin port."""
        assert self.worker
        return self.run(*words, "--admin-address", self.worker.admin)


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str]) -> Terminal:
    """A terminal where no worker runs."""
    return Terminal(capsys)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], worker: Addresses) -> Terminal:
    """A terminal beside a running worker."""
    return Terminal(capsys, worker)
