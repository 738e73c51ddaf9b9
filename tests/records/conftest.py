"""The comparisons that the report's tests are made with."""

from tests.report.conftest import plain, plain_source, sweep_source

__all__ = ["plain", "plain_source", "sweep_source"]
