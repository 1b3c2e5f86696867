"""Compiled kernels are kept for the next start, by nobody but this user, and never more than the bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from service.backends.artefacts import keep_compiled

COMPILE = """
import sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx
from service.backends.artefacts import keep_compiled
from service.backends.lowering import Inductor
from service.backends.program import Program

keep_compiled(Path(sys.argv[1]), "e1")
x, weight, y = torch.arange(8.0), torch.full((8,), float(sys.argv[2])), torch.zeros(8)
step = Inductor().lower(Program(make_fx(lambda x, weight, y: (y.copy_(torch.sin(x) * weight + 1),))(x, weight, y), (x, weight, y)))
for values in (torch.arange(8.0), torch.full((8,), 0.5)):
    x.copy_(values)
    step()
    assert torch.allclose(y, torch.sin(values) * float(sys.argv[2]) + 1)
print(counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had chosen a folder; what a test chooses is forgotten after it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")


Libraries = dict[Path, tuple[int, int]]


def compiled(folder: Path, weight: float = 2.0) -> tuple[Libraries, bool]:
    """Compile a little program in a process of its own; inode and time of the libraries after that, and whether its plan was found."""
    unset = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    words = [sys.executable, "-W", "ignore", "-c", COMPILE, str(folder), str(weight)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=unset)
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.rglob("*.so")}, done.stdout == "1\n"


def test_what_was_compiled_is_used_again(tmp_path: Path) -> None:
    """Kernels and plan, by the next process, whose weights may be others."""
    first, found = compiled(tmp_path / "compiled")
    assert first
    assert not found
    assert compiled(tmp_path / "compiled", weight=3.0) == (first, True)


def test_what_is_broken_is_compiled_anew(tmp_path: Path) -> None:
    """A library or a plan with a byte less, or another's library; the result is right."""
    folder = tmp_path / "compiled"
    first, _ = compiled(folder)
    plans = [file for name in ("fxgraph", "aotautograd") for file in (folder / "e1" / name).rglob("*") if file.is_file()]
    assert plans
    whole = {file: file.read_bytes() for file in first}
    for file in (*first, *plans):
        file.write_bytes(file.read_bytes()[:-1])
    foreign = folder / "e1" / "zz" / "foreign.so"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(b"another's")
    os.utime(foreign, (1, 1))
    second, found = compiled(folder)
    assert not found
    assert second.keys() == first.keys()
    assert all(len(file.read_bytes()) == len(content) for file, content in whole.items())
    assert not foreign.exists()


def test_the_folder_is_the_users_own(tmp_path: Path) -> None:
    """Nobody else may read or write."""
    found = keep_compiled(tmp_path / "compiled", "e1")
    assert found == tmp_path / "compiled" / "e1"
    assert found.stat().st_mode & 0o777 == 0o700
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(found)


@pytest.mark.parametrize("trouble", ["writable by others", "a link", "a file", "somebody else's"])
def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is compiled is kept in a folder of this process then, and that is said."""
    folder = tmp_path / "compiled"
    match trouble:
        case "writable by others":
            (folder / "e1").mkdir(parents=True)
            folder.chmod(0o777)
        case "a link":
            (tmp_path / "elsewhere").mkdir()
            folder.mkdir()
            (folder / "e1").symlink_to(tmp_path / "elsewhere")
        case "a file":
            folder.write_text("")
        case _:
            if os.geteuid() != 0:
                pytest.skip("giving a folder away takes root")
            folder.mkdir()
            os.chown(folder, 65534, 65534)
    found = keep_compiled(folder, "e1")
    assert tmp_path not in found.parents
    assert found.stat().st_mode & 0o777 == 0o700
    assert "compiled kernels are not kept" in caplog.text


def test_a_folder_that_the_user_has_chosen_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's own variable."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    assert keep_compiled(tmp_path / "compiled", "e1") == tmp_path / "mine"
    assert not (tmp_path / "compiled").exists()


def test_torchs_own_default_is_nobodys_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes it into the environment as it is loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    assert keep_compiled(tmp_path / "compiled", "e1") == tmp_path / "compiled" / "e1"


def test_the_oldest_environments_go_first(tmp_path: Path) -> None:
    """Until all fits; the present one only where it is too large by itself."""
    for age, name in enumerate(("newest", "older", "oldest")):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "kernel").write_bytes(b"x" * 100)  # of just now
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    keep_compiled(tmp_path, "older", at_most=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "older"]
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = ""
    keep_compiled(tmp_path, "older", at_most=50)
    assert [path.name for path in tmp_path.iterdir()] == ["older"]
    assert [path.name for path in (tmp_path / "older").iterdir()] == ["graphcache.json"]
