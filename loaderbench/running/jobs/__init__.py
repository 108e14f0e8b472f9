"""The jobs of a measuring process, one file each; `table.py` is their typed table."""
