"""A launcher of training over several processes of this machine: what Slurm or Kubernetes is on a cluster.

It starts the same ``regal-jax train`` once for every process, waits until all have ended, and starts all
again unless all are done. Not a test itself.
"""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

__all__ = ["ROOT", "Launcher", "free_port", "kill_after", "steps_made"]

ROOT = pathlib.Path(__file__).parent.parent
PATIENCE = 600
"""Seconds after which processes that have not ended are called hung; a heartbeat is far less."""


class Launcher:
    """Starts of ``count`` processes with the settings of ``toml``, all with the folder ``out``.

    They are named by JAX's variables, or by those of Slurm.

    Attributes:
      codes: Exit codes of the processes in each round.
      errors: What they wrote to stderr in each round.
    """

    def __init__(self, count, toml, out, *options, devices=1, heartbeat=60, slurm=False):
        self._count, self._devices, self._slurm = count, devices, slurm
        self._arguments = ["train", str(toml), "--out", str(out), "--heartbeat", str(heartbeat), *options]
        self.codes, self.errors = [], []

    def start(self):
        """The processes of one round."""
        port = free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "JAX_NUM_CPU_DEVICES": str(self._devices),
            "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        }
        told = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": str(self._count)}
        if self._slurm:
            # What srun sets; JAX takes the port from the number of the job.
            told = {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
            told |= {"SLURM_NTASKS": str(self._count), "SLURM_STEP_NUM_NODES": "1"}
        command = [sys.executable, "-m", "regal_jax.cli", *self._arguments, "--distributed"]
        return [
            subprocess.Popen(
                command, env=environment | told | self._number(i), text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for i in range(self._count)
        ]  # fmt: skip

    def _number(self, i):
        names = ("SLURM_PROCID", "SLURM_LOCALID") if self._slurm else ("JAX_PROCESS_ID",)
        return dict.fromkeys(names, str(i))

    def round(self, meddle=None):
        """Starts all processes, lets ``meddle`` do what it wants with them, and waits for their ends."""
        processes = self.start()
        try:
            if meddle is not None:
                meddle(processes)
            texts = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        self.codes.append([process.returncode for process in processes])
        self.errors.append(texts)
        return self.codes[-1]

    def run(self, *meddlers):
        """Rounds until all processes are done: one for each of ``meddlers``, and one more."""
        for meddle in (*meddlers, None):
            if self.round(meddle) == [0] * self._count:
                return


def free_port():
    """A port of this machine that nothing uses."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def steps_made(out):
    """The number of steps that the folder of a run has records of."""
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return max((json.loads(line)["step"] for line in lines), default=0)
    except (OSError, ValueError):  # Not there yet, or a line is being written.
        return 0


def changed(out):
    """When the records of a run were last written, or nothing."""
    try:
        return (out / "metrics.jsonl").stat().st_mtime_ns
    except OSError:
        return None


def kill_after(out, step, which, *, number=signal.SIGKILL, seed=None):
    """A meddler that sends a signal to process ``which`` when ``step`` is recorded, or some moments later.

    It waits for a record of this round, since a process that is lost before all have found each other leaves
    the others waiting for it for five minutes.
    """

    def meddle(processes):
        before = changed(out)
        while (changed(out) == before or steps_made(out) < step) and all(p.poll() is None for p in processes):
            time.sleep(0.005)
        if seed is not None:
            time.sleep(random.Random(seed).uniform(0, 0.3))
        elif any(process.poll() is not None for process in processes):
            raise AssertionError(
                f"ended before step {step}: {[p.communicate()[1] for p in processes if p.poll()]}"
            )
        processes[which].send_signal(number)

    return meddle
