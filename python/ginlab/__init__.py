"""ginlab from Python: runs experiments, and returns the environments of NCCL's plugin and of software EFA devices.

    import ginlab
    rows = ginlab.run(["shmem", "-d", "emulated", "--path", "rails", "-p", "worst:seed=7"])
    print(rows[0]["case"], rows[0]["time_us_p50"], rows.header["fabric"])

The package contains the program; see docs/python.md of the repository.
"""

from ginlab._program import Error, program, version
from ginlab._environment import nccl_env, nccl_plugin_path, soft_efa_env
from ginlab._rows import Row, Rows, Value, run

__version__ = version()
__all__ = [
    "Error",
    "Row",
    "Rows",
    "Value",
    "nccl_env",
    "nccl_plugin_path",
    "program",
    "run",
    "soft_efa_env",
    "version",
]
