"""What a measuring process can be asked, one file a job; the typed table of them is `table.py`."""
