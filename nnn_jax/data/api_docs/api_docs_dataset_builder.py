"""API documentation of numpy and scipy: the embedded default data set."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy
import tensorflow_datasets as tfds

from nnn_jax.data import base, records
from nnn_jax.data.api_docs import compose

# Part of the configuration's name: an upgrade rebuilds the data set instead of
# reusing what was prepared from other documentation.
VERSIONS = f"numpy-{np.__version__}-scipy-{scipy.__version__}"
_SEED = 0


class Builder(base.RetrievalBuilder):
  """Requests for numpy and scipy functions, from the installed documentation.

  Document: a public function's qualified name, signature, extended description
  and parameters, without the summary line. Query: the summary lines of 2 to 4
  functions, which one docstring example uses together or which See Also links,
  joined into one request in one of several wordings. Relevant: these
  functions. Ubiquitous helpers (array, arange, ...) are never relevant, nor
  are functions whose summary line does not single them out.

  Splits: train, validation (600), test (800), drawn with a recorded seed so
  that no relevant set of validation or test is, or is part of, a relevant set
  of train. Single documents, and parts of sets, do occur in train: the
  metadata counts them. `see_also` is a second test: the query is one summary
  line (its id names the function) and relevant are the function itself and two
  or more See Also relatives. The function itself counts as relevant because
  its document is the best answer to its own summary: counting it as wrong
  would punish the right first hit.

  Labels are derived, not judged by people, and incomplete: similar functions
  that no example or link connects count as not relevant. Text and sizes depend
  on the installed versions, which the configuration's name and the metadata
  record; no documentation text is stored in this repository.
  """

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
  BUILDER_CONFIGS: ClassVar[list[tfds.core.BuilderConfig]] = [
    tfds.core.BuilderConfig(
      name=VERSIONS, description=f"Documentation of {VERSIONS}."
    )
  ]
  HOMEPAGE = "https://numpy.org/doc, https://docs.scipy.org"
  LICENSE = "BSD-3-Clause (numpy, scipy), as installed."
  CITATION = """@article{harris2020numpy,
  title={Array programming with {NumPy}},
  author={Harris, Charles R. and others},
  journal={Nature}, volume={585}, pages={357--362}, year={2020}}
@article{virtanen2020scipy,
  title={{SciPy} 1.0}, author={Virtanen, Pauli and others},
  journal={Nature Methods}, volume={17}, pages={261--272}, year={2020}}"""

  def read_source(
    self, dl_manager: tfds.download.DownloadManager
  ) -> records.Source:
    """See the base class."""
    del dl_manager  # Nothing to download.
    source = compose.build(seed=_SEED)
    source.metadata |= {
      "numpy_version": np.__version__,
      "scipy_version": scipy.__version__,
      "source": f"numpy {np.__version__}, scipy {scipy.__version__}",
    }
    return source
