"""The command line, `workflow`, on public names only.

`__main__.py` is the group of all commands. The commands are in `instances.py`, `cells.py`, `history.py`, `worker.py`
and `doctor.py`. They share `options.py`, which reads the command line and opens the store, and `output.py`, which shows
values and lists.
"""
