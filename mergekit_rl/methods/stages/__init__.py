"""Stages: what is done to deltas before a merge, and to the merged delta after it."""

import pkgutil
from importlib import import_module

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    import_module(_file.name)
