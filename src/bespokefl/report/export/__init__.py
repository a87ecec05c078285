"""A report as files for a paper: LaTeX, Markdown and CSV, and its figures as SVG, PDF and PNG.

files           `export`: which files are written, and where
text_tables     the tables as text, from which LaTeX and Markdown are made
latex           a file to include in a paper: paragraph, booktabs tables, figures, references
markdown        the same as Markdown
csv_tables      one tidy CSV file per table
figure_rows     the numbers of every figure as rows of a CSV file
drawing         draws a figure with matplotlib; the look of all of them
plots           the figures of every comparison
method_plots    figures that only some methods have
"""

from bespokefl.report.export.files import export

__all__ = ["export"]
