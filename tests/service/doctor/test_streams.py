from __future__ import annotations

from service.doctor.streams import DEFAULT, Streams

MAIN, SIDE, OTHER = 10, 11, 12
FORK, JOIN = 1, 2


def forked() -> Streams:
    """Two operations on the main stream, then one on a side stream that waited for them."""
    streams = Streams(MAIN)
    streams.ran(MAIN, 0)
    streams.ran(MAIN, 1)
    streams.recorded(FORK, MAIN)
    streams.waited(SIDE, FORK)
    streams.ran(SIDE, 2)
    return streams


def test_work_on_the_main_stream_needs_no_join() -> None:
    """Nothing to tell."""
    streams = Streams(MAIN)
    streams.ran(MAIN, 0)
    assert list(streams.unjoined()) == []


def test_a_side_stream_that_is_joined_is_fine() -> None:
    """Forked by one event, joined by another."""
    streams = forked()
    assert streams.forked(SIDE)
    streams.recorded(JOIN, SIDE)
    streams.waited(MAIN, JOIN)
    assert list(streams.unjoined()) == []


def test_a_side_stream_that_is_never_joined_is_told_with_its_first_operation() -> None:
    """However many operations it has."""
    streams = forked()
    streams.ran(SIDE, 3)
    assert list(streams.unjoined()) == [(SIDE, 2)]


def test_work_after_the_join_is_unjoined_again() -> None:
    """The event covers what was there when it was recorded, not what came later."""
    streams = forked()
    streams.recorded(JOIN, SIDE)
    streams.ran(SIDE, 3)
    streams.waited(MAIN, JOIN)
    assert list(streams.unjoined()) == [(SIDE, 3)]


def test_a_join_by_way_of_another_stream_counts() -> None:
    """Main waits for the other stream, which waited for the side stream."""
    streams = forked()
    streams.recorded(JOIN, SIDE)
    streams.waited(OTHER, JOIN)
    streams.ran(OTHER, 3)
    streams.recorded(3, OTHER)
    streams.waited(MAIN, 3)
    assert list(streams.unjoined()) == []


def test_a_stream_that_did_not_wait_is_not_forked() -> None:
    """An event that nobody recorded in this step tells nothing."""
    streams = Streams(MAIN)
    streams.waited(SIDE, 77)
    assert not streams.forked(SIDE)


def test_the_default_stream_is_astray_unless_it_is_the_one_recorded() -> None:
    """Captures never run on it."""
    assert Streams(MAIN).is_astray(DEFAULT)
    assert not Streams(MAIN).is_astray(SIDE)
    assert not Streams(DEFAULT).is_astray(DEFAULT)
