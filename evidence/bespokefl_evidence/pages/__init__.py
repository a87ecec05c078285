"""Pages of the documentation that are made from cells: tables, claims and figures.

results        docs/results.md: published and own results
own_studies    docs/results-selffl-synthetic.md and docs/where-it-pays.md
method_results docs/methods/NAME.md: the table of results in each method's page
claims         docs/claims.md: judge the papers' claims (claims.toml)
claim_tests    how one comparison of a claim is tested
diagnose_calibration  docs/diagnose-calibration.md: what diagnoses predict, and what comes out
intervals      bootstrap over seeds and clients
compare_check  docs/compare-check.md: `bespoke compare` beside an exhaustive search
figures        the papers' figures
drawing        SVG files with matplotlib
outcomes       the cells of an experiment by scenario and row
scores         figures of a cell, such as the accuracy of the worst client
"""
