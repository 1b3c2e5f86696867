"""Which device work has been waited for: clocks of streams, advanced by operations and carried over by events."""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT = 0  # the handle of the default stream

Clock = dict[int, int]  # of each stream, the last operation that is known to come before


class Streams:
    """Streams and events by their handles, operations by their numbers. `main` is the stream that is recorded."""

    def __init__(self, main: int) -> None:
        self._main = main
        self._clocks: dict[int, Clock] = {main: {main: -1}}
        self._events: dict[int, Clock] = {}
        self._work: dict[int, list[int]] = {}  # of side streams: their operations

    def ran(self, stream: int, operation: int) -> None:
        """An operation was put on a stream."""
        self._clock(stream)[stream] = operation
        if stream not in (self._main, DEFAULT):
            self._work.setdefault(stream, []).append(operation)

    def is_astray(self, stream: int) -> bool:
        """Whether work on this stream is not recorded at all, because it is the default one."""
        return stream == DEFAULT and self._main != DEFAULT

    def recorded(self, event: int, stream: int) -> None:
        """An event marks all that the stream has done or waited for."""
        self._events[event] = dict(self._clock(stream))

    def waited(self, stream: int, event: int) -> None:
        """What comes on the stream from now on comes after the event."""
        clock = self._clock(stream)
        for other, operation in self._events.get(event, {}).items():
            clock[other] = max(clock.get(other, -1), operation)

    def forked(self, stream: int) -> bool:
        """Whether the stream waited for the main one in this step, and so belongs to the recording."""
        return self._main in self._clock(stream)

    def unjoined(self) -> Iterator[tuple[int, int]]:
        """Side streams whose work the main stream does not wait for, with the first such operation."""
        joined = self._clocks[self._main]
        for stream, work in self._work.items():
            late = [operation for operation in work if operation > joined.get(stream, -1)]
            if late:
                yield stream, late[0]

    def _clock(self, stream: int) -> Clock:
        return self._clocks.setdefault(stream, {})
