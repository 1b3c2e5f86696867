"""Resolve the ranges of pyproject.toml around requirements-pins.txt and write both lock files. `make lock` runs it.

Local version labels ("+cpu") are dropped: which build of a version a machine takes is its own affair, and what a CUDA build of torch
needs on top is pinned by torch itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by `make lock`; do not edit. Ranges are in pyproject.toml.\n"


def resolve(requirements: list[str]) -> dict[str, str]:
    """Name to version of everything that `requirements` bring with them."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["-c", str(ROOT / "requirements-pins.txt"), *requirements]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = (item["metadata"] for item in report["install"])
    return {item["name"].lower().replace("_", "-"): item["version"].partition("+")[0] for item in found}


def write(path: Path, head: str, pins: dict[str, str]) -> None:
    """One pin a line, sorted."""
    path.write_text(head + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
    print(f"{path.name}: {len(pins)} packages")


def main() -> None:
    """Lock what runs, then what development adds to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"]
    run = resolve(wanted)
    everything = resolve(wanted + project["dependency-groups"]["dev"])
    write(ROOT / "requirements.lock", HEADER, run)
    write(ROOT / "requirements-dev.lock", HEADER + "-r requirements.lock\n", {k: v for k, v in everything.items() if k not in run})


if __name__ == "__main__":
    main()
