"""The documentation site: what MkDocs does not do by itself, a file each.

`tutorials` runs the code of pages, `formulas` turns LaTeX into MathML, `repository` makes files of the repository that
pages link to part of the site, `commands` writes the reference of the command line, and `check` looks at the finished
site. `hooks` is what MkDocs calls.
"""
