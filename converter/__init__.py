"""PocketSD's converter: a Stable Diffusion 1.x checkpoint in, packages out. Uses torch."""
