"""Torch computes with one thread in every test and in every process that a test starts.

The models are tiny: a second thread gains nothing, and where the machine is busy each thread burns a core waiting for
the other. OpenMP reads the number once, when torch is imported.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
