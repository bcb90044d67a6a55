"""Published figures, in per cent, to print beside ours and label as such."""

from __future__ import annotations

# arXiv 2606.17910: (R@3, R@5, Comp@3, Comp@5) by data set and decoder, each
# trained for 20 epochs from bge-small-en-v1.5.
METRICS = ("R@3", "R@5", "Comp@3", "Comp@5")
NNN: dict[str, dict[str, tuple[float, float, float, float]]] = {
  "toolbank/numpy": {
    "dense": (66.9, 79.5, 30.8, 50.9),
    "MMR": (71.1, 80.6, 38.6, 54.7),
    "COLT": (67.9, 80.2, 32.9, 52.5),
    "NNN-Fix": (73.6, 84.2, 41.0, 61.4),
    "NNN-Tr": (74.7, 85.2, 42.6, 63.1),
  },
  "toolbank/pandas": {
    "dense": (40.1, 49.7, 7.3, 14.1),
    "MMR": (42.8, 51.2, 9.9, 15.8),
    "COLT": (39.7, 49.0, 7.2, 13.5),
    "NNN-Fix": (46.8, 55.7, 12.6, 20.3),
    "NNN-Tr": (49.9, 58.1, 15.1, 23.1),
  },
  "toolbank/aws": {
    "dense": (63.4, 75.3, 30.0, 45.1),
    "MMR": (68.5, 77.6, 36.4, 49.7),
    "COLT": (63.2, 75.1, 29.9, 45.0),
    "NNN-Fix": (72.0, 80.6, 39.4, 55.3),
    "NNN-Tr": (73.4, 81.6, 41.3, 57.4),
  },
  "toollens": {
    "dense": (81.2, 92.5, 55.2, 81.5),
    "MMR": (88.8, 97.1, 72.2, 93.1),
    "COLT": (89.1, 97.0, 73.5, 93.6),
    "NNN-Fix": (88.0, 96.1, 72.0, 91.4),
    "NNN-Tr": (96.1, 98.4, 91.8, 97.0),
  },
  "multihop_rag": {
    "dense": (77.4, 88.4, 50.7, 75.1),
    "MMR": (76.7, 88.3, 48.9, 74.7),
    "COLT": (80.1, 89.1, 54.2, 76.4),
    "NNN-Fix": (77.3, 89.8, 50.2, 76.4),
    "NNN-Tr": (84.4, 91.9, 63.1, 81.8),
  },
}
