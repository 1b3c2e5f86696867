"""Where in the configuration something stands, for errors that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.errors import ConfigError, ends_the_program, said


@dataclass(frozen=True, slots=True)
class Place:
    """A key's path, such as `models[1] (encoder).axes.seq`."""

    path: str

    @classmethod
    def of_model(cls, name: str, index: int | None) -> Place:
        """The model's own place; without an index it came by an admin call."""
        return cls(f"model {name}" if index is None else f"models[{index}] ({name})")

    def at(self, key: str) -> Place:
        """The place of a key inside."""
        return Place(f"{self.path}.{key}")

    def error(self, problem: str) -> ConfigError:
        """One line that says what is wrong here."""
        return ConfigError(f"{self.path}: {problem}")

    def existing(self, path: Path) -> Path:
        """The path of a file named here. Raises ConfigError where there is none."""
        if not path.is_file():
            raise self.error(f"{path.name}: no such file")
        return path

    @contextmanager
    def blamed(self, doing: str) -> Iterator[None]:
        """Turn whatever foreign code raises into a ConfigError of this place."""
        try:
            yield
        except ConfigError:
            raise
        except BaseException as error:
            if ends_the_program(error):
                raise
            problem = " ".join(said(error).split())[:500]
            raise self.error(f"{doing} raised {type(error).__name__}: {problem}") from error
