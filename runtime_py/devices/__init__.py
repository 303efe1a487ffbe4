"""Phones that packages are deployed to and run on."""
