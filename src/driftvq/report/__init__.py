"""Results of a comparison or a run on disk, as tables to paste and as one page that opens without a network.

Nothing here trains or needs torch: a report can be built anywhere, and again.
"""

from driftvq.records.comparisons import Comparison, load_comparison
from driftvq.records.runs import load_results
from driftvq.report.page import write_report
from driftvq.report.results import Results, Row, aggregate
from driftvq.report.tables import results_table, write_results
from driftvq.report.words import answer

__all__ = [
    "Comparison", "Results", "Row", "aggregate", "answer", "load_comparison", "load_results", "results_table",
    "write_report", "write_results",
]  # fmt: skip
