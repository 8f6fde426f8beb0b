"""The store in a FoundationDB cluster: for any number of machines.

`fdb:///etc/foundationdb/fdb.cluster?prefix=shop`, or `fdb://` for the cluster file that FoundationDB's client finds by
itself. Options: `prefix` (all keys lie under it; `workflow_sdk`), `api_version` (`730`), `timeout` (seconds until an
operation is an error; `10`), `automatic_idempotency` (`no`).

`_url.py` reads the URL, `_binding.py` is all that is used of the `foundationdb` package, and `_waiting.py` waits for
its futures in an event loop. `_keys.py` and `_values.py` say where things lie and how, `_reading.py` reads them,
`_plan.py` turns a batch into what is to be written, and `_writing.py` writes it. `_session.py` tries again what can be,
`_commit.py` and `_tokens.py` apply a batch exactly once, `_staging.py` handles values too large for one transaction,
`_watch.py` knows who waits for which key, `_user.py` is what authors write with in transactions of their own,
`_upkeep.py` clears what crashed processes have left, and `_driver.py` has the methods.
"""

from workflow_drivers.foundationdb._driver import FoundationDBDriver, open
from workflow_drivers.foundationdb._user import UserTransaction

__all__ = ["FoundationDBDriver", "UserTransaction", "open"]
