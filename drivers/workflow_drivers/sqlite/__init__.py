"""The store in an SQLite file: for one machine, any number of processes.

`sqlite:///relative.db`, `sqlite:////absolute/app.db`; options `?synchronous=full` (the default: a commit survives power
loss) or `normal` (it survives the death of the process), and `?busy_timeout=30` (seconds to wait for other processes).

`_url.py` reads the URL, `_file.py` holds all SQL and runs in the connections' threads, `_driver.py` holds the queue of
batches and runs in the event loop, `_thread.py` joins the two, and `_watch.py` knows who waits for which key.
"""

from workflow_drivers.sqlite._driver import SqliteDriver, open

__all__ = ["SqliteDriver", "open"]
