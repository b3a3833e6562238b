"""The site of documentation: `make docs`. Pages are read where they stand, so that their links work on both."""

import superopt

project = "superopt"
author = "the authors of superopt"
version = release = superopt.__version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"superopt {version}"
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # MLIR, which Pygments does not know
