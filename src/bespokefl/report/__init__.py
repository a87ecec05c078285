"""The HTML page of a comparison, a run or a diagnosis: tables and figures in one file that opens without a network.

page                 writes the page of a comparison or a run
diagnosis            writes the page of a diagnosis
document             reads the results from disk
overview             verdicts, warnings, remarks, and how to repeat it
tables               the ranking of the methods, and the table of clients
figures              the figures of every comparison, and the numbers they are drawn from
method_figures       figures that only some methods have
collaboration_map    the map of who learns from whom
method_style         colour, marker and dash of each method
scores, formatting   scores of single clients, and how numbers are printed
rendering            fills in the templates: *.html, page.css, page.js and figures.toml in templates/
"""

from bespokefl.report.page import write

__all__ = ["write"]
