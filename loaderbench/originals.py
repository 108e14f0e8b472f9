"""The unmodified modules `os` and `time`, copied before a watched script runs: what the
script puts into them (a fake clock, a wrapper that counts calls) is for the script alone.

Tools that replace such functions look for them in the attributes of all modules: they find none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os as os
    import time as time
else:
    import os as _os
    import time as _time
    from types import ModuleType

    def _copy(module: ModuleType) -> ModuleType:
        copied = ModuleType(f"{__name__}.{module.__name__}")
        vars(copied).update({name: value for name, value in vars(module).items() if name != "__name__"})
        return copied

    os, time = _copy(_os), _copy(_time)
