"""Rules of this project's own for names and phrases; `python scripts/lint.py` runs them."""
