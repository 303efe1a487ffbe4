"""LiteRT (TFLite) files that a phone's GPU delegate takes whole."""
