"""Reports: a fit and what was found from it, in one HTML file that needs no network."""

from .page import write_report

__all__ = ["write_report"]
