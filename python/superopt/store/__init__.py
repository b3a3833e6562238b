"""A store of results, on disk; see `folder` for its layout."""

from superopt.store.folder import Store, chosen_folder, default_folder
from superopt.store.records import Entry, Key, StoreUnavailable
from superopt.store.results import lookup, publish, versions

__all__ = [
    "Entry",
    "Key",
    "Store",
    "StoreUnavailable",
    "chosen_folder",
    "default_folder",
    "lookup",
    "publish",
    "versions",
]
