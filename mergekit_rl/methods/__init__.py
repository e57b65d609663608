"""Merge methods: one file each, found by name. Importing the package registers them all."""

import pkgutil
from importlib import import_module

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    import_module(_file.name)
