"""What wrk says."""

from __future__ import annotations

import pytest

from bench.server import Answered, read_report

REPORT = """Running 2s test @ http://127.0.0.1:41333
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   541.24ms   96.01ms 697.32ms   70.00%
    Req/Sec    10.15      9.62    30.00     84.62%
  Latency Distribution
     50%  540.50ms
     75%  601.20ms
     90%  672.09ms
     99%    1.20s
  15 requests in 2.06s, 158.82KB read
{failures}Requests/sec:      7.27
Transfer/sec:     76.94KB
"""


@pytest.mark.parametrize(
    ("failures", "failed", "texts_per_second"),
    [
        ("", 0, 232.64),
        ("  Non-2xx or 3xx responses: 3\n", 3, 186.112),
        ("  Non-2xx or 3xx responses: 15\n", 15, 0),
    ],
)
def test_a_report_of_wrk_is_read(failures: str, failed: int, texts_per_second: float) -> None:
    """Rates count embedded texts, neither requests nor refusals; times are milliseconds whatever their unit."""
    answered = read_report(REPORT.format(failures=failures), texts_per_request=32, busy=0.5)
    assert answered == Answered(pytest.approx(texts_per_second), p50_ms=540.5, p99_ms=1200.0, failed=failed, busy=0.5)


def test_a_server_that_answers_nothing_embeds_nothing() -> None:
    """A report of no request is a rate of 0, not a division by 0."""
    report = REPORT.format(failures="").replace("15 requests", "0 requests").replace("7.27", "0.00")
    assert read_report(report, texts_per_request=32, busy=0.0).texts_per_second == 0.0


def test_what_is_no_report_is_an_error() -> None:
    """A wrk that could not connect must not become a figure."""
    with pytest.raises(ValueError, match="unable to connect"):
        read_report("unable to connect to 127.0.0.1:1 Connection refused", texts_per_request=1, busy=None)
