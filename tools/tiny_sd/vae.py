"""Stage 1: the autoencoder, trained on crops first and on whole pictures at the end.

It is convolutional, so small crops around the edges of the shapes - where all the
difficulty is - teach it as much per picture at a quarter of the cost. The last part of the
budget goes to whole pictures, whose normalisation statistics are those it will meet in use.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from runtime_py.prompt_score.scenes import SIDE, Scene, draw, outline, training_scene
from tools.tiny_sd.budget import Average, Budget, set_rate
from tools.tiny_sd.models import new_vae
from tools.tiny_sd.workers import share_and_run

#: (share of the budget at which the phase ends, side of the crops, batch)
PHASES = ((0.65, 32, 8), (0.75, 64, 3), (1.0, SIDE, 1))
PEAK_RATE = 2e-3
SQUARE_WEIGHT, EDGE_WEIGHT, KL_WEIGHT = 2.0, 0.5, 1e-4


def to_tensor(pictures: np.ndarray) -> torch.Tensor:
    """uint8 NHWC in 0..255 to float NCHW in -1..1 (channels last in memory)."""
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def _crop(picture: np.ndarray, scene: Scene, side: int, rng: random.Random) -> np.ndarray:
    """A crop around some point of some thing's outline, so that every crop shows an edge."""
    thing = rng.choice(scene.things)
    x, y = rng.choice(outline(thing.shape))
    left, top = (
        int(min(max(at + thing.radius * step + rng.uniform(-8, 8) - side / 2, 0), SIDE - side))
        for at, step in ((thing.x, x), (thing.y, y))
    )
    crop = picture[top : top + side, left : left + side]
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def _batch(rng: random.Random, progress: float) -> torch.Tensor:
    """Fresh pictures, cropped as the phase of training asks."""
    side, count = next((side, count) for end, side, count in PHASES if progress <= end)
    scenes = [training_scene(rng) for _ in range(count)]
    crops = [_crop(np.asarray(draw(scene)), scene, side, rng) for scene in scenes]
    return to_tensor(np.stack(crops))


def _slope(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]


def _loss(vae: AutoencoderKL, x: torch.Tensor) -> torch.Tensor:
    """Errors of pixels and of their differences (edges), and a KL term that keeps latents tame.

    The KL term is a mean over latent numbers. It is far heavier than Stable Diffusion's: it puts
    noise into the latents the decoder sees, which then forgives the denoiser small errors.
    """
    posterior = vae.encode(x).latent_dist
    latents = posterior.mean + posterior.std * torch.randn_like(posterior.mean)
    y = vae.decode(latents).sample
    edges = sum(F.l1_loss(a, b) for a, b in zip(_slope(y), _slope(x), strict=True))
    kl = -0.5 * (1 + posterior.logvar - posterior.mean**2 - posterior.var).mean()
    # Squares make it learn colours early, absolute values make it sharp later.
    return F.l1_loss(y, x) + SQUARE_WEIGHT * F.mse_loss(y, x) + EDGE_WEIGHT * edges + KL_WEIGHT * kl


def _open_budget(minutes: float, cache: Path) -> Budget:
    return Budget("vae", minutes, cache / "vae.pt")


def _work(number: int, vae: AutoencoderKL, minutes: float, cache: Path, seed: int) -> None:
    """One worker's training loop; worker 0 also keeps the average, the log and the checkpoint."""
    average = Average(vae, 0.995)
    optimiser = torch.optim.AdamW(vae.parameters(), PEAK_RATE, (0.9, 0.99), weight_decay=1e-3)
    state = {"vae": vae, "average": average, "optimiser": optimiser}
    budget = _open_budget(minutes, cache)
    budget.resume(**state)
    torch.manual_seed(seed * 1_000_003 + 10 * budget.step + number)
    rng = random.Random(torch.initial_seed())
    while budget.left:
        set_rate(optimiser, budget.rate(PEAK_RATE))
        loss = _loss(vae, _batch(rng, budget.progress))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if number == 0:
            average.update(vae)
            budget.tick(loss)
            budget.save(**state)
    if number == 0:
        budget.save(every=0, **state)


def train(minutes: float, cache: Path, seed: int, workers: int) -> AutoencoderKL:
    """Train (or take up) the autoencoder; returns it with averaged weights and scaling factor."""
    torch.manual_seed(seed)
    vae = new_vae().to(memory_format=torch.channels_last)
    share_and_run(_work, workers, vae, minutes, cache, seed)
    average = Average(vae, 0.995)
    _open_budget(minutes, cache).resume(average=average)
    vae.load_state_dict(average.weights)
    vae.eval().requires_grad_(False)
    scale = 1 / encode(vae, sample_pictures(64, seed + 1)).std().item()
    vae.register_to_config(scaling_factor=round(scale, 5))
    return vae


def sample_pictures(count: int, seed: int) -> np.ndarray:
    rng = random.Random(seed)
    return np.stack([np.asarray(draw(training_scene(rng))) for _ in range(count)])


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: np.ndarray) -> torch.Tensor:
    """Unscaled latent means of uint8 pictures."""
    return vae.encode(to_tensor(pictures)).latent_dist.mean


@torch.no_grad()
def psnr(vae: AutoencoderKL, pictures: np.ndarray) -> float:
    """Mean peak signal-to-noise ratio of pictures that went through the autoencoder, in dB."""
    x = to_tensor(pictures)
    y = vae.decode(vae.encode(x).latent_dist.mean).sample.clamp(-1, 1)
    error = ((x - y) / 2).square().mean(dim=(1, 2, 3))
    return (-10 * error.log10()).mean().item()
