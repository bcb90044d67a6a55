"""The flag of data sets' folders."""

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import manual


@pytest.fixture(autouse=True, scope="module")
def defined():
  manual.define()
  flags.FLAGS.mark_as_parsed()
  yield
  del flags.FLAGS.manual_dir


def test_a_name_may_have_a_configuration_and_a_folder_an_equals_sign():
  with flagsaver.flagsaver(
    manual_dir=["toolbank/numpy=/a/b=c", "limit=relative"]
  ):
    assert manual.folders() == {
      "toolbank/numpy": "/a/b=c",
      "limit": "relative",
    }


@pytest.mark.parametrize("entry", ["/data/toollens", "toollens=", "=/data"])
def test_an_entry_without_both_parts_says_what_is_wrong(entry):
  with (
    flagsaver.flagsaver(manual_dir=[entry]),
    pytest.raises(flags.Error, match=f"--manual_dir={entry} should be NAME="),
  ):
    manual.folders()
