import gzip
from pathlib import Path

import pytest

from service.cli.traffic import trace
from service.errors import ConfigError

GOOD = "arrival_s,prompt_tokens,output_tokens\n2.5,10,3\n0.5,400,1\n"


def test_bundled_trace_is_ten_minutes_of_arrivals_in_order() -> None:
    """What `make run` drives is there, sorted, and small enough to ship."""
    arrivals = trace.read(trace.bundled())
    assert len(arrivals) == 4123
    assert arrivals[0].at_s == 0.0
    assert 590 < arrivals[-1].at_s < 600
    assert arrivals == sorted(arrivals, key=lambda arrival: arrival.at_s)
    assert trace.bundled().stat().st_size < 60_000


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_reads_plain_and_gzipped_files_in_order_of_time(tmp_path: Path, name: str) -> None:
    """Both forms give the same arrivals, sorted."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD.encode()) if name.endswith(".gz") else GOOD.encode())
    assert trace.read(path) == [trace.Arrival(0.5, 400, 1), trace.Arrival(2.5, 10, 3)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("arrival_s,prompt_tokens\n0,1\n", "line 1: column output_tokens is missing"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,many,2\n", "line 3: not three numbers"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", "line 2: not three numbers"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,1,2\n", "line 2: a negative number"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,2\n", "line 2: a negative number"),
        ("arrival_s,prompt_tokens,output_tokens\n", "has no arrivals"),
        ("", "line 1: column arrival_s is missing"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_line(tmp_path: Path, text: str, place: str) -> None:
    """Each flaw is found where it is."""
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        trace.read(path)
    assert str(caught.value) == f"{path}: {place}"


def test_a_missing_file_and_one_that_is_not_gzip_are_errors(tmp_path: Path) -> None:
    """The operating system's or gzip's reason comes with the path."""
    with pytest.raises(ConfigError, match=r"nowhere\.csv: No such file"):
        trace.read(tmp_path / "nowhere.csv")
    path = tmp_path / "plain.csv.gz"
    path.write_text(GOOD)
    with pytest.raises(ConfigError, match=r"plain\.csv\.gz: Not a gzipped file"):
        trace.read(path)


def test_p95_is_a_value_that_few_exceed() -> None:
    """Never below 1, so that it can be divided by."""
    assert trace.p95(list(range(1, 101))) == 95
    assert trace.p95([0, 0]) == 1
