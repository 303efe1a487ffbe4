"""Makes tiny-sd, the small latent diffusion model that ships inside the project.

The world it knows is drawn by `scenes`, put into words by `captions`, read back off
pictures by `checker`; `vae`, `text` and `unet` are the three training stages.
"""
