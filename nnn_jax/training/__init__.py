"""Training of encoders through decoders: stages, loop, checkpoints, logs."""
