"""Serve each model of a folder through a running worker, and compare every reply with eager on fresh tensors.

    python benchmarks/cases.py FOLDER [--device cuda:0] [--seeds 3] [--only a01 …]      (FOLDER defaults to $CASES_DIR)

A model is a Python file with `make_model()`, `example_inputs(batch, seed)`, and `EXPECT`: equal (replayed, padded, and right), refuse (no
graph, and eager is right), equal_or_refuse, or pad_safe_or_refuse (right; replayed at exact sizes, padded, or refused). It may say
RTOL and ATOL, MIN_BATCH, STATEFUL, DETERMINISTIC = False, REASONS (hints), NEEDS_GPU (what it expects holds on a GPU; on a CPU it is
only never wrong). Captures are forced past the profit test, never past the proof. One line for each model; exit code 1 where one fails.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import grpc
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from service.models.loaded import DATATYPES, TORCH_DTYPES, name_outputs
from service.pb.graphcache.v1 import admin_pb2, replay_pb2
from service.pb.graphcache.v1.admin_pb2_grpc import AdminServiceStub
from service.pb.graphcache.v1.replay_pb2_grpc import ReplayServiceStub
from service.tensors import Datatype

ROOT = Path(__file__).resolve().parent.parent
BATCHES = (1, 3, 4, 7, 8)
BUCKETS = (8, 4)
TOGETHER = 16  # requests in flight
REPEATS = 20  # of one request to a model that is random
TIMEOUT_S = 300.0

OUTCOMES = ("equal", "refuse", "equal_or_refuse", "pad_safe_or_refuse")
OWN_WORDS = {"padded": "equal", "repeated": "equal", "exact": "pad_safe_or_refuse"}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model's file."""

    path: Path
    file: ModuleType

    @classmethod
    def of(cls, path: Path) -> Case:
        """Run the file."""
        spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look a class' module up
        spec.loader.exec_module(module)
        return cls(path, module)

    @property
    def name(self) -> str:
        """The model's name on the worker."""
        return self.path.stem

    @property
    def expect(self) -> str:
        """The outcome it asks for; files of this project's own tests may name the padding or the reason of a refusal."""
        wanted = str(self.file.EXPECT)
        return wanted if wanted in OUTCOMES else OWN_WORDS.get(wanted, "refuse")

    @property
    def least(self) -> int:
        """The smallest batch that the model takes."""
        return int(getattr(self.file, "MIN_BATCH", 1))

    def fresh(self, device: torch.device) -> nn.Module:
        """An instance of its own."""
        module: nn.Module = self.file.make_model().to(device)
        return module

    def inputs(self, batch: int, seed: int) -> Tensors:
        """Values for one request."""
        return dict(self.file.example_inputs(batch, seed))


@dataclass
class Tally:
    """What became of one model's requests."""

    paths: Counter[str] = field(default_factory=Counter)
    padded: int = 0
    wrong: list[str] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def verdict(self, case: Case, *, enforced: bool) -> str:
        """Why the model fails; empty where it does not."""
        if self.wrong:
            return self.wrong[0]
        if not enforced:
            return ""
        replayed, eager = self.paths["replay"], self.paths["eager"]
        match case.expect:
            case "equal" if eager or not self.padded:
                return "not all replayed"
            case "refuse" if replayed or self.captured:
                return "a graph was admitted"
            case "equal_or_refuse" if self.captured and self.refused:
                return "some buckets admitted, some refused"
            case _:
                return ""

    def outcome(self) -> str:
        """In a few words."""
        text = ", ".join(f"{count} {path}" for path, count in sorted(self.paths.items()))
        return f"{text} ({self.padded} padded)" if self.padded else text

    def reason(self) -> str:
        """Of the refusals."""
        return next(iter(self.refused.values()), "")


class Client:
    """One worker."""

    def __init__(self, inference: str, admin: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channels = [grpc.insecure_channel(address, options=options) for address in (inference, admin)]
        self.replay = ReplayServiceStub(self.channels[0])
        self.admin = AdminServiceStub(self.channels[1])

    def load(self, case: Case) -> None:
        """Load a model with buckets 4 and 8."""
        text = f"{{name: {case.name}, factory: 'file:{case.path}', axes: {{batch: {{max: 8, buckets: [4, 8]}}}}}}"
        self.admin.LoadModel(admin_pb2.LoadModelRequest(config_yaml=text), timeout=TIMEOUT_S)

    def warm(self, case: Case, batch: int) -> str:
        """Capture a bucket; the reason where that is refused."""
        request = admin_pb2.WarmRequest(model=case.name, shape={"batch": batch}, force=True)
        try:
            self.admin.Warm(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            return str(error.details())
        return ""

    def infer(self, case: Case, inputs: Tensors) -> tuple[Tensors, replay_pb2.Outcome]:
        """One request."""
        tensors = [_to_wire(name, tensor) for name, tensor in inputs.items()]
        reply = self.replay.Replay(replay_pb2.ReplayRequest(model=case.name, inputs=tensors), timeout=TIMEOUT_S)
        return {tensor.name: _from_wire(tensor) for tensor in reply.outputs}, reply.outcome


def _to_wire(name: str, tensor: torch.Tensor) -> replay_pb2.Tensor:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return replay_pb2.Tensor(name=name, datatype=str(DATATYPES[tensor.dtype]), shape=tensor.shape, data=data)


def _from_wire(tensor: replay_pb2.Tensor) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(bytearray(tensor.data), dtype=np.uint8))
    return flat.view(TORCH_DTYPES[Datatype(tensor.datatype)]).view(tuple(tensor.shape))


def eager(module: nn.Module, inputs: Tensors, device: torch.device) -> Tensors:
    """The reference, on tensors of its own."""
    with torch.no_grad():
        result = module(**{name: tensor.clone().to(device) for name, tensor in inputs.items()})
    return {name: tensor.cpu() for name, tensor in name_outputs(result, None).items()}


def difference(case: Case, expected: Tensors, got: Tensors) -> str:
    """Why a reply is wrong; empty where it is right."""
    if len(expected) != len(got):
        return f"outputs {sorted(got)}, eager gives {sorted(expected)}"
    for (name, tensor), answer in zip(expected.items(), got.values(), strict=True):
        if answer.shape != tensor.shape or answer.dtype is not tensor.dtype:
            return f"{name} is {answer.dtype}{list(answer.shape)}, eager gives {tensor.dtype}{list(tensor.shape)}"
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        rtol, atol = getattr(case.file, "RTOL", 1e-2 if half else 1e-5), getattr(case.file, "ATOL", 1e-2 if half else 1e-6)
        close = torch.allclose(answer, tensor, rtol=rtol, atol=atol, equal_nan=True) if answer.is_floating_point() else answer.equal(tensor)
        if not close:
            return f"{name} differs from eager"
    return ""


class Trial:
    """One model under test."""

    def __init__(self, client: Client, case: Case, device: torch.device, seeds: int) -> None:
        self.client = client
        self.case = case
        self.device = device
        self.seeds = seeds
        self.tally = Tally()
        self.reference = case.fresh(device)

    def run(self) -> Tally:
        """Load, force the captures, ask."""
        case, tally = self.case, self.tally
        self.client.load(case)
        for bucket in BUCKETS:
            refusal = self.client.warm(case, bucket)
            if refusal:
                tally.refused[bucket] = refusal
            else:
                tally.captured.append(bucket)
        if getattr(case.file, "DETERMINISTIC", True) is False:
            self._ask_random()
        elif getattr(case.file, "STATEFUL", False):
            self._ask_in_turn(BATCHES)  # the reference changes itself alike, so every answer of the sequence is known
        else:
            self._ask_in_turn(BATCHES)
            self._ask_together()
        self._ask_too_small()
        return tally

    def _ask_in_turn(self, batches: Sequence[int]) -> None:
        for seed in range(self.seeds):
            for batch in batches:
                if batch >= self.case.least:
                    inputs = self.case.inputs(batch, seed)
                    expected = eager(self.reference, inputs, self.device)
                    self._check(batch, expected, *self.client.infer(self.case, inputs))

    def _ask_together(self) -> None:
        requests = [self.case.inputs(batch, 1000 + seed) for seed in range(4 * self.seeds) for batch in BATCHES if batch >= self.case.least]
        before = copy.deepcopy(requests)
        with ThreadPoolExecutor(TOGETHER) as pool:
            replies = list(pool.map(lambda inputs: self.client.infer(self.case, inputs), requests))
        for inputs, (outputs, outcome) in zip(before, replies, strict=True):
            self._check(outcome.batch_rows, eager(self.reference, inputs, self.device), outputs, outcome)

    def _ask_random(self) -> None:
        inputs = self.case.inputs(3, 0)
        answers = [self.client.infer(self.case, inputs) for _ in range(REPEATS)]
        for _, outcome in answers:
            self.tally.paths[_path(outcome)] += 1
        name = next(iter(answers[0][0]))
        if len({answer[name].numpy().tobytes() for answer, _ in answers}) < REPEATS:
            self.tally.wrong.append("random answers repeat themselves")

    def _ask_too_small(self) -> None:
        """What eager rejects fails alike, and the worker goes on."""
        if self.case.least == 1:
            return
        try:
            self.client.infer(self.case, self.case.inputs(1, 0))
            self.tally.wrong.append("a batch of one is answered, eager raises")
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL:
                self.tally.wrong.append(f"a batch of one: {error.code().name}")

    def _check(self, batch: int, expected: Tensors, outputs: Tensors, outcome: replay_pb2.Outcome) -> None:
        path = _path(outcome)
        self.tally.paths[path] += 1
        self.tally.padded += path == "replay" and outcome.padding_ratio > 0
        found = difference(self.case, expected, outputs)
        if found:
            self.tally.wrong.append(f"WRONG: {found} ({path}, batch {batch})")


def _path(outcome: replay_pb2.Outcome) -> str:
    return replay_pb2.Path.Name(outcome.path).removeprefix("PATH_").lower()


@contextmanager
def worker(folder: Path, device: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """A worker without models, on free ports."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "worker.yaml"
        ports = ", ".join(f"{key}: '127.0.0.1:0'" for key in ("listen", "admin_listen", "metrics_listen", "probe_listen"))
        config.write_text(
            f"worker: {{{ports}, device: '{device}', allowed_factories: ['file:{folder}/*.py']}}\n"
            "cache: {budget: 4GiB, capture: {background: false}}\n"
        )
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "service",
            "serve",
            "-c",
            str(config),
            "--set",
            "profile_store=none",
            "--set",
            "cache.prewarm.graphs=0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening "):
                raise SystemExit(f"the worker did not start: {line!r}")
            addresses = dict(part.split("=", 1) for part in line.split()[1:])
            try:
                yield Client(addresses["inference"], addresses["admin"]), process
            finally:
                process.send_signal(signal.SIGTERM)


def main() -> int:
    """Run all cases of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CASES_DIR"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of file names")
    options = parser.parse_args()
    if options.folder is None:
        parser.error("name a folder, or set CASES_DIR")
    paths = [path for path in sorted(options.folder.resolve().glob("*.py")) if path.name.startswith(tuple(options.only) or ("",))]
    failed = 0
    with worker(options.folder.resolve(), options.device) as (client, process):
        for path in paths:
            case = Case.of(path)
            enforced = options.device != "cpu" or not getattr(case.file, "NEEDS_GPU", False)
            try:
                tally = Trial(client, case, torch.device(options.device), options.seeds).run()
                problem, outcome, reason = tally.verdict(case, enforced=enforced), tally.outcome(), tally.reason()
            except grpc.RpcError as error:
                problem, outcome, reason = f"{error.code().name}: {error.details()}", "error", ""
            if process.poll() is not None:
                problem = f"the worker ended with exit code {process.returncode}"
            failed += bool(problem)
            mark = "FAILED" if problem else "ok" if enforced else "ok (expectation holds on a GPU only)"
            line = f"{getattr(case.file, 'ID', ''):4} {case.name:28} expect={case.expect:19} {outcome:36} {reason[:90]:90} {mark}"
            print(f"{line} {problem}".rstrip(), flush=True)
            if process.poll() is not None:
                break
    print(f"{len(paths)} models, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
