"""A file of lines on a disk that may be full."""

import errno
import os
import pathlib
import sys


class LogFile:
  """A text file that outlives a full disk: what does not fit is kept for later."""

  def __init__(self, path: pathlib.Path):
    """Opens the file to write on at its end."""
    self._path = path
    self._file = path.open("ab", buffering=0)
    self._size = self._file.seek(0, os.SEEK_END)
    self._left = b""
    self._is_told = False

  def append(self, line: str) -> None:
    """Writes a line, and those before it that could not be written."""
    self._left += line.encode()
    try:
      written = self._file.write(self._left)
      if written < len(self._left):
        self._file.truncate(self._size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as e:
      if not self._is_told:
        print(
            f"{self._path} cannot be written ({e.strerror}); its lines are kept"
            " until it can be. Those of tensorboard/ may be lost.",
            file=sys.stderr,
            flush=True,
        )
      self._is_told = True
    else:
      self._size += written
      self._left, self._is_told = b"", False

  def close(self) -> None:
    """Closes the file, after a last try to write what is left."""
    if self._left:
      self.append("")
    self._file.close()
