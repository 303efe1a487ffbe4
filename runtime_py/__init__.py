"""PocketSD's harness and host runtime: packages, pipeline, engines, command line. Free of torch."""

__version__ = "0.1.0"
