"""What has been done of an output, in files beside it, so that a later run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.apply.statistics import load_statistics, write_statistics
from numnorm.commands.terminal import CommandError
from numnorm.operating_system import rename

_STATES = 3
"""How many states are kept: of a box that is written, of one being written, and of the next."""


class Journal:
    """The numbers of the boxes that are written, the statistics of batch norm, and states in time.

    Parameters
    ----------
    directory : Path, optional
        Where it is kept. Default: nowhere, and nothing is done yet.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.written: set[int] = set()

    @property
    def _written_file(self) -> Path | None:
        return None if self.directory is None else self.directory / "done"

    @property
    def _statistics_file(self) -> Path | None:
        return None if self.directory is None else self.directory / "statistics.npz"

    def begin(self, request: Mapping[str, Any]) -> None:
        """Write the arguments of the run and the identity of its input.

        Parameters
        ----------
        request : mapping
            Both, for JSON.
        """
        assert self.directory is not None
        with _whole(self.directory / "request.json") as file:
            file.write(json.dumps(request).encode())

    def go_on(self, request: Mapping[str, Any], path: str) -> bool:
        """Read what an earlier run has done.

        Parameters
        ----------
        request : mapping
            As for `begin`.
        path : str
            The output, for the message.

        Returns
        -------
        bool
            Whether there is something to go on from.

        Raises
        ------
        CommandError
            If the earlier run had other arguments or another input.
        """
        assert self.directory is not None
        assert self._written_file is not None
        try:
            before = json.loads((self.directory / "request.json").read_text("utf-8"))
        except FileNotFoundError:
            return False
        except ValueError as error:
            raise CommandError(
                f"what an earlier run wrote of {path} cannot be read: start anew without --resume"
            ) from error
        asked = json.loads(json.dumps(request))
        other = [name for name in asked if asked[name] != before.get(name)]
        if other:
            raise CommandError(
                f"{path} was begun with another {' and '.join(other)}: give the same, "
                "or start anew without --resume"
            )
        if self._written_file.exists():
            # A line without its end was being written when the process died.
            lines = self._written_file.read_text("ascii").splitlines(keepends=True)
            self.written = {int(line) for line in lines if line.endswith("\n")}
        return True

    def note_written(self, number: int) -> None:
        """Note that a box is written.

        Parameters
        ----------
        number : int
            Its place in the order of all boxes.
        """
        self.written.add(number)
        if self._written_file is not None:
            with open(self._written_file, "a", encoding="ascii") as file:
                file.write(f"{number}\n")

    def load_statistics(self, channels: int) -> tuple[Array, Array] | None:
        """Return the mean and the variance of each channel, if they were saved.

        Parameters
        ----------
        channels : int
            The number of channels.

        Returns
        -------
        tuple of ndarray, or None
            What `save_statistics` got.
        """
        if self._statistics_file is None or not self._statistics_file.exists():
            return None
        return load_statistics(self._statistics_file, channels)

    def save_statistics(self, mean: Array, variance: Array) -> None:
        """Save the statistics of batch norm.

        Parameters
        ----------
        mean, variance : ndarray
            The mean and the variance of each channel.
        """
        if self._statistics_file is not None:
            with _whole(self._statistics_file) as file:
                write_statistics(file, mean, variance)

    def load_state(self, number: int) -> dict[str, Any]:
        """Return what `save_state` got for a box, of which the result is written.

        Parameters
        ----------
        number : int
            The number of the box.

        Returns
        -------
        dict
            The state after it.
        """
        assert self.directory is not None
        with np.load(self._state_file(number), allow_pickle=False) as file:
            return {name: file[name][()] for name in file.files}

    def save_state(self, number: int, state: Mapping[str, Any]) -> None:
        """Keep the state after a box, before the box is written.

        Parameters
        ----------
        number : int
            Its place in the order of all boxes.
        state : mapping
            Numbers and arrays.
        """
        if self.directory is not None:
            with _whole(self._state_file(number)) as file:
                np.savez(file, **state)
            # The result of the box before may still be on its way.
            self._state_file(number - _STATES).unlink(missing_ok=True)

    def _state_file(self, number: int) -> Path:
        assert self.directory is not None
        return self.directory / f"state-{number}.npz"


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file of the journal, which is whole or not there after a kill."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        yield file
    rename(partial, path)
