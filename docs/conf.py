project = "reconrisk"
copyright = "the reconrisk authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = "reconrisk"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
myst_heading_anchors = 3
napoleon_use_ivar = True  # fields of dataclasses are documented once, in the docstring of their class
suppress_warnings = ["ref.python"]  # plain words such as values or prior name attributes of several classes
