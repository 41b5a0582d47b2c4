"""find_batch_size() beside an exhaustive search, on small models of four kinds."""
