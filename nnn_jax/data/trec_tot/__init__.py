"""TFDS builder: see the class docstring of the module in this folder."""
