"""Write docs/structures.md from the layers of .importlinter and the first sentence of every module; `--check` only compares.

One source for each line: the module says what it does, the import contract says where it stands.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "structures.md"
HEAD = """# Structures

One line per module, written by `make structures` from the modules' own first sentences. Imports run from the top of this page to the
bottom, never back: `.importlinter` has the contract, `make check` proves it. `service/pb` is generated from `proto/`.
"""


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, fit for a table."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0].replace("|", r"\|")


def layers() -> Iterator[list[str]]:
    """Names of modules from the top layer to the bottom."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    for line in contracts["importlinter:contract:layers"]["layers"].split("\n"):
        if names := re.findall(r"\w+", line):
            yield names


def rows(path: Path) -> Iterator[str]:
    """Table rows of a package or module, subpackages included."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"), key=lambda file: (file.parent, file.name != "__init__.py", file.name))
    for file in files:
        name = file.relative_to(ROOT)
        is_package = file.name == "__init__.py"
        shown = f"**`{name.parent}/`**" if is_package else f"`{name}`"
        yield f"| {shown} | {sentence(file)} |\n"


def page() -> str:
    """The whole document."""
    parts = [HEAD, "\n| module | does |\n|---|---|\n"]
    for names in layers():
        for name in names:
            path = ROOT / "service" / name
            found = path if path.is_dir() else path.with_suffix(".py")
            if found.exists():
                parts.extend(rows(found))
    parts.extend(rows(ROOT / "cachepolicy"))
    return "".join(parts)


def main() -> int:
    """Exit code 1 where the page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print("docs/structures.md is stale: run `make structures`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
