"""A training run in a separate process, which kills itself at a given point.

``python learning_run.py FOLDER WHERE``: ``WHERE`` is ``references:N`` (while line ``N`` of the references is
being written), ``KIND:STEP`` (in the middle of that record of metrics), or
``save:STEP`` (while that checkpoint is being written). Not a test itself.
"""

import os
import signal
import sys
import threading

import jax
from learning_cases import one_device, tiny_config

from regal_jax.learning import reference
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.record import Record


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def in_references(lines):
    append, written = reference._append, []

    def dying(path, settings, found):
        written.extend(found)
        append(path, settings, found)
        if len(written) >= lines:
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size - 20)
            die()

    reference._append = dying


def in_record(kind, step):
    add = Record.add

    def dying(self, what, at, values):
        if (what, at) == (kind, step):
            with self._lines.path.open("a") as file:
                file.write('{"step": 3, "ki')
            die()
        add(self, what, at, values)

    Record.add = dying


def in_save(step):
    save = Checkpoints.save

    def dying(self, state, notes):
        if int(state.step) == step:
            threading.Timer(0.001, die).start()
        save(self, state, notes)
        if int(state.step) == step:
            die()

    Checkpoints.save = dying


def main(folder, where):
    # The settings of conftest.py: with others, programs that the tests have compiled could not be used.
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    what, _, number = where.partition(":")
    if what == "references":
        in_references(int(number))
    elif what == "save":
        in_save(int(number))
    else:
        in_record(what, int(number))
    one_device(tiny_config(), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
