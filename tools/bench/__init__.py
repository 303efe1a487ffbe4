"""Measurements that only report; no test depends on them."""
