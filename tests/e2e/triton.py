"""The environment of Triton's official client, made on first use in `.venv-triton` at the project's root.

Run as a script (`make triton`) it also fetches what perf_analyzer links to and a wheel does not bring: Debian's libb64.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parent.parent / ".venv-triton"
REQUIREMENTS = HERE / "triton-requirements.txt"
LIBRARIES = HOME / "debian"


def python() -> Path:
    """The interpreter that can import tritonclient. The environment is made anew when the requirements have changed."""
    installed = HOME / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    interpreter = HOME / "bin" / "python"
    if not (installed.exists() and installed.read_text() == wanted):
        shutil.rmtree(HOME, ignore_errors=True)
        venv.create(HOME, with_pip=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS], check=True)
        installed.write_text(wanted)
    return interpreter


def perf_analyzer(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run perf_analyzer; its output, both streams together, is in `stdout`."""
    return subprocess.run(
        [python().with_name("perf_analyzer"), *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_with_libraries(os.environ),
    )


def _with_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    fetch_libraries()
    folders = {library.parent for pattern in ("libb64.so*", "libcudart.so*") for library in HOME.rglob(pattern)}
    return {**environment, "LD_LIBRARY_PATH": ":".join(map(str, sorted(folders)))}


def fetch_libraries() -> None:
    """Unpack Debian's libb64 beside the environment; needs no root, and an `apt-get update` at some time before."""
    if LIBRARIES.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "-qq", "download", "libb64-0d"], cwd=folder, check=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, LIBRARIES], check=True)


if __name__ == "__main__":
    python()
    fetch_libraries()
    sys.exit(perf_analyzer(["--version"]).returncode)
