"""A function that workers of an engine run, without graphs and without JAX."""

import os
import sys
import time

from regal_jax.runtime.cores import available_cores


def echo(common, messages, tell):
    """A work function without graphs: returns what it was sent, and what the process has loaded."""
    for position, message in enumerate(messages):
        time.sleep(common.head.get("seconds", 0))
        head = {"jax": "jax" in sys.modules, "pid": os.getpid(), "parent": os.getppid()}
        head |= {"cores": available_cores(), "common": dict(common.head), "own": dict(message.head)}
        head["gpu"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        tell(position, type(message)(head, message.blobs), True)
