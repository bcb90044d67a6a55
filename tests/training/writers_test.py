"""Tests of nnn_jax.training.writers."""

import json
import struct

import hypothesis
import hypothesis.strategies as st
import pytest
from tensorboardX.proto import event_pb2

from nnn_jax.training import writers


def write(folder, steps, resume_step=0):
  writer = writers.MetricsWriter(folder, resume_step=resume_step)
  for step in steps:
    writer.write(step, {"validation/comp@5": step / 8})
  writer.close()


def read_events(folder):
  """(step, tag, value) of all scalars, in order of the files."""
  events = []
  for path in sorted((folder / "tensorboard").iterdir()):
    data = path.read_bytes()
    while data:  # Length, its checksum, the event, its checksum.
      (size,) = struct.unpack("<Q", data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + size])
      data = data[16 + size :]
      events += [
        (event.step, value.tag, value.simple_value)
        for value in event.summary.value
      ]
  return events


def test_records_come_back(tmp_path):
  write(tmp_path / "new" / "run", [1, 2])
  assert writers.read_metrics(tmp_path / "new" / "run") == [
    {"step": 1, "validation/comp@5": 0.125},
    {"step": 2, "validation/comp@5": 0.25},
  ]


def test_tensorboard_has_the_same_values(tmp_path):
  write(tmp_path, [1, 2])
  assert read_events(tmp_path) == [
    (1, "validation/comp_5", 0.125),
    (2, "validation/comp_5", 0.25),
  ]


def test_a_record_is_on_disk_before_the_next_step(tmp_path):
  writer = writers.MetricsWriter(tmp_path)
  writer.write(1, {"loss": 0.5})
  assert writers.read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}]
  writer.close()


def test_resume_drops_what_comes_again(tmp_path):
  write(tmp_path, [0, 1, 2, 3, 4, 5])
  write(tmp_path, [4, 5, 6], resume_step=3)
  records = writers.read_metrics(tmp_path)
  assert [r["step"] for r in records] == [0, 1, 2, 3, 4, 5, 6]
  assert not list(tmp_path.glob("*.tmp"))


def test_several_records_of_the_last_step_are_kept(tmp_path):
  write(tmp_path, [1, 2, 2, 3])
  write(tmp_path, [], resume_step=2)
  assert [r["step"] for r in writers.read_metrics(tmp_path)] == [1, 2, 2]


@hypothesis.given(st.integers(1, 40))
def test_a_torn_last_line_is_left_out(tmp_path_factory, cut):
  folder = tmp_path_factory.mktemp("torn")
  whole = [json.dumps({"step": s, "loss": 0.5}) + "\n" for s in (1, 2, 3)]
  cut = min(cut, len(whole[-1]))
  text = "".join(whole)[:-cut]
  (folder / "metrics.jsonl").write_text(text)
  steps = [r["step"] for r in writers.read_metrics(folder)]
  assert steps == ([1, 2, 3] if cut == 1 else [1, 2])


@pytest.mark.parametrize("cut", [1, 9])
def test_writing_goes_on_after_a_torn_line(tmp_path, cut):
  write(tmp_path, [1, 2, 3])
  path = tmp_path / "metrics.jsonl"
  path.write_text(path.read_text()[:-cut])
  write(tmp_path, [3], resume_step=2)
  assert [r["step"] for r in writers.read_metrics(tmp_path)] == [1, 2, 3]
  assert len(path.read_text().splitlines()) == 3


def test_no_file(tmp_path):
  assert writers.read_metrics(tmp_path / "missing") == []
