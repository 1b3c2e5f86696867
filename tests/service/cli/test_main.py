import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli import COMMANDS, cli
from tests.service.cli.conftest import Terminal

CLIENT_MODULES = sorted({module for module, _ in COMMANDS.values()} - {"serve", "doctor"})


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nope",), "No such command 'nope'"),
        (("infer", "m"), "give either --random AXIS=SIZE… or --npz FILE"),
        (("infer", "m", "batch=1"), "give either --random AXIS=SIZE… or --npz FILE"),
        (("infer", "m", "--random", "batch"), "'batch' is not AXIS=SIZE"),
        (("infer", "m", "--random", "batch=0"), "batch=0: the size must be a positive whole number"),
        (("infer", "m", "--random", "batch=1", "batch=2"), "'batch' is given twice"),
        (("infer", "m", "--random", f"batch={10**18}"), "the size must be a positive whole number of at most 18 digits"),
        (("explain", "m", f"batch={'9' * 5000}"), "the size must be a positive whole number of at most 18 digits"),
        (("infer", "m", "--random", "--seed", "-5"), "Invalid value for '--seed': -5 is not in the range x>=0"),
        (("infer", "m", "--random", "--address", "localhost"), "must be host:port or unix:/path, not 'localhost'"),
        (("graphs", "--admin-address", "localhost:99999"), "must be host:port or unix:/path, not 'localhost:99999'"),
        (("budget", "-5"), "must be a size such as 64MiB, not '-5'"),
        (("infer", "m", "--random", "--deadline", "soon"), "must be a duration such as 2ms, 15s or 10m, not 'soon'"),
        (("infer", "m", "--random", "--param", "adapter"), "'adapter' is not NAME=VALUE"),
        (("budget", "much"), "must be a size such as 64MiB, not 'much'"),
        (("replay-trace", "nowhere.csv", "--model", "m"), "nowhere.csv: No such file"),
        (("replay-trace", "nowhere.csv"), "Missing option '--model'"),
        (("serve",), "give either a file (-c FILE) or --demo"),
        (("serve", "-c", "nowhere.yaml"), "nowhere.yaml: No such file"),
        (("config", "check", "nowhere.yaml"), "nowhere.yaml: No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(alone: Terminal, words: tuple[str, ...], problem: str) -> None:
    """It says what is wrong and where."""
    answer = alone.run(*words)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("graphcache: ")
    assert answer.err.count("\n") == 1
    assert problem in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("infer", "m", "--random", "--address"),
        ("graphs", "--admin-address"),
        ("explain", "m", "batch=1", "--admin-address"),
        ("warm", "m", "batch=1", "--admin-address"),
        ("evict", "m", "--admin-address"),
        ("pin", "m", "batch=1", "--admin-address"),
        ("unpin", "m", "batch=1", "--admin-address"),
        ("mode", "m", "none", "--admin-address"),
        ("budget", "1MiB", "--admin-address"),
    ],
)
def test_no_worker_is_one_line_and_exit_code_1(alone: Terminal, words: tuple[str, ...]) -> None:
    """It names the address that was tried."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: nobody else takes the port meanwhile
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        answer = alone.run(*words, address)
    assert answer.code == 1
    assert answer.err == f"graphcache: no worker answers at {address}\n"


def test_an_address_in_use_is_one_line_and_exit_code_2(alone: Terminal) -> None:
    """The configuration's key and the address are named."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = alone.run("serve", "--demo", "--set", f"worker.listen={address}")
    assert answer.code == 2
    assert "worker.listen" in answer.err
    assert address in answer.err
    assert answer.err.count("\n") == 1


def test_every_command_of_the_table_exists_and_has_help(alone: Terminal) -> None:
    """The table in the help is the truth."""
    for name in COMMANDS:
        answer = alone.run(name, "--help")
        assert answer.code == 0
        assert answer.out.startswith(f"Usage: graphcache {name}")
    assert set(cli.list_commands(None)) == set(COMMANDS)  # type: ignore[arg-type] # no context is needed


def test_client_commands_load_no_torch() -> None:
    """A client starts fast and stays small; only `serve` becomes a worker."""
    imports = "; ".join(f"import service.cli.{module}" for module in CLIENT_MODULES)
    program = f"import sys; import service.__main__; {imports}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_help_loads_neither_grpc_nor_numpy() -> None:
    """The first thing a newcomer types answers at once."""
    program = "import sys; from service.cli import main; main(['--help']); sys.exit('grpc' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_config_check_accepts_a_good_file_and_names_each_flaw(alone: Terminal, tmp_path: Path) -> None:
    """Exit code 0 with the models, or 2 with one line a flaw."""
    file = tmp_path / "worker.yaml"
    good = "models:\n  - {name: mlp, factory: 'service.models.demo:mlp', inputs: {x: {datatype: FP32, shape: [batch, 256]}}}\n"
    file.write_text(good)
    assert alone.run("config", "check", str(file), "--json").json["models"] == ["mlp:1"]
    file.write_text(good.replace("FP32", "FP32, fill: valid"))
    answer = alone.run("config", "check", str(file))
    assert (answer.code, answer.err) == (2, "graphcache: models[0] (mlp).inputs.x.fill: valid needs datatype BOOL, not FP32\n")
    file.write_text("worker: {listne: 127.0.0.1:1}\n")
    answer = alone.run("config", "check", str(file))
    assert answer.code == 2
    assert "listne" in answer.err
    assert answer.err.count("\n") == 1


def test_config_check_finds_what_needs_no_model_to_be_found(alone: Terminal, tmp_path: Path) -> None:
    """Factories that are not allowed, and files that are not there: a line for each."""
    file = tmp_path / "worker.yaml"
    file.write_text(
        """
worker: {allowed_factories: ["service.models.demo:*", "file:models/*.py"]}
models:
  - {name: a, factory: "os:system"}
  - {name: b, factory: "file:models/none.py"}
  - {name: c, program: none.pt2}
  - {name: d, factory: "service.models.demo:mlp", weights: none.safetensors}
"""
    )
    answer = alone.run("config", "check", str(file))
    assert answer.code == 2
    assert answer.err.splitlines() == [
        "graphcache: models[0] (a).factory: os:system is not in worker.allowed_factories (service.models.demo:*, file:models/*.py)",
        "graphcache: models[1] (b).factory: file:models/none.py: no such file",
        "graphcache: models[2] (c).program: none.pt2: no such file",
        "graphcache: models[3] (d).weights: none.safetensors: no such file",
    ]


def test_config_check_says_when_nothing_would_be_served(alone: Terminal, tmp_path: Path) -> None:
    """An empty file is valid, and hardly what its writer meant."""
    file = tmp_path / "worker.yaml"
    file.write_text("")
    assert "models: none: nothing is served until one is loaded" in alone.run("config", "check", str(file)).out


def test_a_host_that_does_not_exist_is_one_line(alone: Terminal) -> None:
    """Without the resolver's own words."""
    answer = alone.run("graphs", "--admin-address", "no.such.host.invalid:1")
    assert (answer.code, answer.err) == (1, "graphcache: no.such.host.invalid:1: no such host\n")


def test_a_budget_beyond_the_device_is_refused_at_start(alone: Terminal) -> None:
    """It could never be true."""
    answer = alone.run("serve", "--demo", "--set", "cache.budget=1000TiB", "--set", "worker.listen=127.0.0.1:0")
    assert answer.code == 2
    assert answer.err.startswith(f"graphcache: cache.budget: {1000 << 40} bytes are more than the device's memory of ")


def test_version_names_what_it_stands_on(alone: Terminal) -> None:
    """As text and as JSON."""
    versions = alone.run("version", "--json").json
    assert {"graphcache", "python", "torch", "grpcio"} <= set(versions)
    assert f"graphcache {versions['graphcache']}" in alone.run("version").out
