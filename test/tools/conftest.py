"""Lets the tests of this folder share helpers: the golden rally, the browser."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
