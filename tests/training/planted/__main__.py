"""Write the planted models of the package into a folder: `python -m tests.training.planted layerdiv_tl/zoo/models`."""

import sys
from pathlib import Path

from .cases import CASES
from .model import PREFIX, build_planted, save_planted

for name in CASES:
    save_planted(build_planted(name), Path(sys.argv[1]) / f"{PREFIX}{name}")
