"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

PathLike = str | os.PathLike[str]


def write(path: PathLike, data: bytes | str) -> None:
  """Writes a whole file; a failed write leaves the old one.

  Args:
    path: Where to; missing folders are made.
    data: Bytes, or text that is written as UTF-8.

  >>> import tempfile
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   write(pathlib.Path(folder, "new", "a.txt"), "done")
  ...   print([p.name for p in pathlib.Path(folder, "new").iterdir()])
  ['a.txt']
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  # In the same folder: os.replace is atomic only within one file system. A
  # plain open, unlike tempfile, gives the permissions the user's umask asks.
  temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
  try:
    with temporary.open("xb") as file:
      file.write(data.encode() if isinstance(data, str) else data)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(target: PathLike) -> Iterator[pathlib.Path]:
  """Yields an empty folder that becomes `target` when the block succeeds.

  If the block or the renaming fails, an older `target` stays as it was.
  """
  target = pathlib.Path(target)
  target.parent.mkdir(parents=True, exist_ok=True)
  unique = uuid.uuid4().hex
  new = target.with_name(f".{target.name}.new-{unique}")
  old = target.with_name(f".{target.name}.old-{unique}")
  new.mkdir()
  try:
    yield new
    # A folder cannot be renamed over one with contents: the old one steps
    # aside first.
    if target.exists():
      os.replace(target, old)
    try:
      os.replace(new, target)
    except OSError:
      if old.exists():
        os.replace(old, target)
      raise
  finally:
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
