"""Steps of torch's optimizers: stand-ins, and the proof that torch's bits are ours."""
