"""Input graphs and output paths, shared by several commands."""

import argparse
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from regal_jax.errors import ConfigError
from regal_jax.storage.atomic import try_to_write
from regal_jax.storage.paths import path_text

if TYPE_CHECKING:
    from regal_jax.graph import ComputationGraph

__all__ = ["check_writable", "dimensions", "load", "made_folder", "refuse_file_options"]


def load(file: str | None, args: argparse.Namespace) -> "ComputationGraph":
    """The graph of ``file``, or of the example that ``args`` name."""
    if file is None:
        refuse_file_options(args)
        from regal_jax.examples import DEFAULT_EXAMPLE, kept_example

        return kept_example(args.example or DEFAULT_EXAMPLE, profile=args.profile or "h200")
    if args.example is not None:
        raise ConfigError("give a file or --example, not both")
    from regal_jax.importers import find_format, load_graph

    options: dict[str, Any] = {} if args.profile is None else {"profile": args.profile}
    if options and not find_format(file, args.format).estimated:
        raise ConfigError(
            f"--profile is for examples, ONNX models and compiled programs; {file!r} has runtimes of its "
            "own; leave it out"
        )
    if args.dim:
        if not find_format(file, args.format).symbolic:
            raise ConfigError(f"--dim is for ONNX models; {file!r} has no symbolic dimensions, leave it out")
        options["dims"] = dimensions(args)
    if args.in_place:
        if not find_format(file, args.format).in_place:
            raise ConfigError(f"--in-place is for ONNX models; {file!r} is none, leave it out")
        if getattr(args, "devices", 1) > 1:
            raise ConfigError(
                "--in-place: buffers are shared on one device; give --devices 1 or leave it out"
            )
        options["in_place"] = True
    return load_graph(file, format=args.format, **options)


def refuse_file_options(args: argparse.Namespace) -> None:
    """Refuses the options that say how a file is read, where no file is read."""
    for option, given, what in (
        ("--format", args.format, "files"),
        ("--dim", args.dim, "ONNX models"),
        ("--in-place", args.in_place, "ONNX models"),
    ):
        if given:
            raise ConfigError(f"{option} is for {what}; leave it out, or name a file")


def dimensions(args: argparse.Namespace) -> dict[str, int]:
    """Name -> size of the dimensions that ``--dim`` gives."""
    dims = dict(args.dim)
    if len(dims) < len(args.dim):
        raise ConfigError("--dim: a dimension occurs twice; give each once")
    return dims


def check_writable(*paths: str | None, inputs: Iterable[str | None] = ()) -> None:
    """Checks before a long search that its results can be saved, each in a file of its own.

    Args:
      paths: Files that will be written.
      inputs: Files that are read, and must not be written.

    Raises:
      ConfigError: A file cannot be written, is one of the inputs, or would be written twice.
    """
    taken = {os.path.realpath(file): "is an input" for file in inputs if file and os.path.isfile(file)}
    for path in paths:
        if path is None:
            continue
        if not path:
            raise ConfigError("cannot write '': give the name of a file")
        file = os.path.realpath(path_text(path))
        if file in taken:
            raise ConfigError(f"cannot write {path!r}: it {taken[file]}; name another file")
        if os.path.isfile(file) or not os.path.exists(file):  # Otherwise a pipe or /dev/null, for example.
            taken[file] = "is written for another option"
        folder = pathlib.Path(path).absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"cannot write {path!r}: no folder {str(folder)!r}; make it first")
        special = os.path.exists(path) and not os.path.isfile(path)
        if special:
            blocked = os.path.isdir(path) or not os.access(path, os.W_OK)  # Otherwise a pipe, for example.
        else:
            blocked = not os.access(folder, os.W_OK)
        if blocked:
            raise ConfigError(f"cannot write {path!r}: it is a folder, or its folder is read-only")
        if not special:
            try:
                try_to_write(pathlib.Path(file))
            except OSError as error:
                raise ConfigError(
                    f"cannot write {path!r}: {error.strerror or error}; name another file"
                ) from None


def made_folder(path: str) -> pathlib.Path:
    """The folder of ``--out-dir``, made and tried before a long search, so that its results can be saved.

    Raises:
      ConfigError: It cannot be made, or no file can be written in it.
    """
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_to_write(folder / "plan")
    except OSError as error:
        raise ConfigError(
            f"--out-dir: cannot write in {path!r}: {error.strerror or error}; name another folder"
        ) from None
    return folder
