"""Where compiled kernels are kept, so that a restart need not compile again: a bounded folder that only this user reads and writes.

Inductor names what it compiles by a digest of its source, and does not look whether the file is whole. So a list of digests is kept
beside the files, and what differs from it is removed before it can be loaded. Environments have folders of their own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from time import time

from service.imports import import_dynamo

log = logging.getLogger(__name__)

AT_MOST = 1 << 30  # bytes, of all environments together
_LIST = "graphcache.json"
_JUST_NOW_S = 60.0
_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled(folder: Path, environment: str, at_most: int = AT_MOST) -> Path:
    """Have Inductor keep what it compiles in `folder`, under this environment; to be called before the first compile. Returns where.

    A folder that others may write to, or that can't be made, is not used: what is compiled is then kept for this process only. Where the
    user has set TORCHINDUCTOR_CACHE_DIR that is left alone.
    """
    import_dynamo()
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415 - imports it

    chosen = os.environ.get(_VARIABLE)
    if chosen and chosen != default_cache_dir():  # which torch sets by itself as soon as it is loaded
        return Path(chosen)
    found = folder / environment
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(folder)
        _require_own(found)
        _discard_unsound(found)
        os.utime(found)
        _prune(folder, found, at_most)
        _write_list(found, _read_list(found))
    except OSError as error:
        found = Path(tempfile.mkdtemp(prefix="graphcache-compiled-"))
        log.warning("compiled kernels are not kept: %s: %s", folder, error.strerror or error)
    os.environ[_VARIABLE] = str(found)
    return found


def seal() -> None:
    """Note what was compiled since the last time, if it is kept; to be called after each compile."""
    folder = Path(os.environ.get(_VARIABLE, ""))
    if (folder / _LIST).exists():
        known = _read_list(folder)
        new = {name: _digest(file) for name, file in _files(folder).items() if name not in known}
        if new:
            _write_list(folder, {**known, **new})


def _write_list(folder: Path, digests: dict[str, str]) -> None:
    fresh = folder / f"{_LIST}.{os.getpid()}"
    fresh.write_text(json.dumps(digests), encoding="utf-8")
    fresh.replace(folder / _LIST)


def _discard_unsound(folder: Path) -> None:
    """Remove what is not as it was noted. What is not noted may be another process' work of just now."""
    known = _read_list(folder)
    for name, file in _files(folder).items():
        noted = known.get(name)
        if noted is None and time() - file.lstat().st_mtime < _JUST_NOW_S:
            continue
        if file.is_symlink() or not noted or noted != _digest(file):
            log.warning("a compiled kernel is not as it was written, and is compiled anew: %s", file)
            file.unlink(missing_ok=True)


def _files(folder: Path) -> dict[str, Path]:
    """Everything but the list, locks and what is being written, by name."""
    found = {str(file.relative_to(folder)): file for file in folder.rglob("*") if not file.is_dir()}
    return {name: file for name, file in found.items() if not name.startswith((_LIST, "locks/")) and not name.endswith((".tmp", ".lock"))}


def _read_list(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(0, "belongs to, or may be written by, somebody else")


def _prune(folder: Path, current: Path, at_most: int) -> None:
    """Give up environments that were not used for the longest time; the present one only where it is too large by itself."""
    sizes = {one: _size(one) for one in folder.iterdir() if one.is_dir()}
    for one in sorted(sizes, key=lambda one: (one == current, one.stat().st_mtime)):
        if sum(sizes.values()) <= at_most:
            return
        shutil.rmtree(one, ignore_errors=True)
        del sizes[one]
    current.mkdir(mode=0o700, exist_ok=True)


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
