"""A package against its source: numbers, ranges, where the GPU leaves the path."""
