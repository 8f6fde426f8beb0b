"""The store in an SQLite file: for one machine, any number of processes.

`sqlite:///relative.db`, `sqlite:////absolute/app.db`; options `?synchronous=full` (the default: a commit survives power
loss) or `normal` (it survives the death of the process), and `?busy_timeout=30` (seconds to wait for other processes).

In the threads of the connections: `_file.py` opens the file and reads, `_writing.py` writes a group of batches as one
transaction, which `_merge.py` works out, and `_transact.py` lets authors write in one.

In the event loop: `_driver.py` has the methods, `_reader.py` and `_queue.py` decide whether a read or a commit is made
there or in a thread, for which `_pace.py` measures how long they take, and `_watch.py` knows who waits for which key.

`_thread.py` joins the two, and `_url.py` reads the URL.
"""

from workflow_drivers.sqlite._driver import SqliteDriver, open

__all__ = ["SqliteDriver", "open"]
