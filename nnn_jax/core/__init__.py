"""What decoders and solvers share: checks, precision, gradients, top-k."""
