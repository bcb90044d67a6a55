"""The flag `--manual_dir`: original files of data sets, by the set's name.

Experiments of one data set, the configs of which have `manual_dir`, do without.
"""

from __future__ import annotations

from absl import flags


def define() -> None:
  """Defines the flag; for the `__main__` of an experiment."""
  flags.DEFINE_multi_string(
    "manual_dir",
    [],
    "NAME=FOLDER with a data set's original files, once for each data set. "
    "Files of the others are downloaded.",
  )


def folders() -> dict[str, str]:
  """Data set -> folder, as the flag says.

  Raises:
    UsageError: an entry is not NAME=FOLDER.
  """
  given = {}
  for entry in flags.FLAGS.manual_dir:
    name, equals, folder = entry.partition("=")
    if not (name and equals and folder):
      raise flags.IllegalFlagValueError(
        f"--manual_dir={entry} should be NAME=FOLDER, such as "
        "--manual_dir=toollens=/data/toollens."
      )
    given[name] = folder
  return given
