"""The HTML page of a comparison, a run or a diagnosis: tables and figures in one file that opens without a network.

page                 writes the page of a comparison, a run or a diagnosis
diagnosis            the page of a diagnosis
document             reads the results from disk
overview             verdicts, warnings and references
tables               the ranking of the methods, the table of clients, and how numbers are printed
figures              the figures of every comparison, the numbers they are drawn from, and the look of each method
constant_predictor   the constant predictor, majority class or mean value, in the format of a method
curves               the numbers of the curves over the rounds
method_figures       figures that only some methods have
rendering            fills in the templates: *.html, page.css and page.js in templates/, whose *.toml have the texts
export/              the same report as LaTeX, Markdown and CSV, and its figures as SVG, PDF and PNG
"""

from bespokefl.report.export import export
from bespokefl.report.page import write

__all__ = ["export", "write"]
