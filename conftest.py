"""One thread a test process: `make test` has a process for each core, and threads that wait for one another's core only spin.

On two busy cores a training of two threads took seven times the processor of one thread. Processes that tests start inherit it. A number
of threads that is asked for stays as it is.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
