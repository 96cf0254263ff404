"""The reproduction of the paper: a grid of trainings, and the tables, figures and verdicts made of them.

`published` holds the paper's own numbers, `cells` the grid, `grid` runs it, `results` writes tables and figures,
`claims` says which statements of the paper hold, `record` when that has changed, and `document` puts verdicts and
pictures on one page.
"""
