"""Stage 3: the denoiser, trained on latents and caption embeddings computed once beforehand."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from runtime_py.prompt_score.captions import caption
from runtime_py.prompt_score.scenes import draw, training_scene
from tools.tiny_sd.budget import Average, Budget, set_rate
from tools.tiny_sd.models import LATENT, MAX_TOKENS, TEXT_WIDTH, alphas_cumprod, new_unet
from tools.tiny_sd.text import embed
from tools.tiny_sd.vae import encode
from tools.tiny_sd.workers import share_and_run

CAPTIONS = 2  # per picture
BATCH, PEAK_RATE, DECAY = 16, 5e-4, 0.998
DROP_CAPTION = 0.1  # teaches the unconditional half of classifier-free guidance
#: The denoiser predicts velocity, not noise. Where it is noisiest, colours and places are decided,
#: and there a noise predictor's error is multiplied by 15 on its way into the picture. That is
#: the reason for the choice; the two were not compared at equal training.
#: Loss weight of a timestep: one plus its signal-to-noise ratio to the power of minus the first;
#: the second draws noisy timesteps more often.
SNR_POWER, TIME_POWER = 0.25, 0.8
CHUNK = 25


def _prepare(
    number: int,
    vae: AutoencoderKL,
    encoder: CLIPTextModel,
    folder: Path,
    seed: int,
    workers: int,
    latents: torch.Tensor,
    texts: torch.Tensor,
) -> None:
    """Fill every `workers`-th chunk of the shared data tensors."""
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    scale = vae.config.scaling_factor
    for start in range(number * CHUNK, len(latents), workers * CHUNK):
        rng = random.Random(f"{seed} {start}")
        scenes = [training_scene(rng) for _ in range(min(CHUNK, len(latents) - start))]
        pictures = np.stack([np.asarray(draw(scene)) for scene in scenes])
        stop = start + len(scenes)
        latents[start:stop] = scale * encode(vae, pictures)
        for version in range(CAPTIONS):
            words = [caption(scene, rng) for scene in scenes]
            texts[start:stop, version] = embed(encoder, tokenizer, words)


def prepare(
    count: int,
    cache: Path,
    seed: int,
    workers: int,
    vae: AutoencoderKL,
    encoder: CLIPTextModel,
    folder: Path,
) -> dict[str, torch.Tensor]:
    """Latents and caption embeddings of `count` training scenes (kept in the cache)."""
    file = cache / "latents.pt"
    if file.exists():
        return torch.load(file, weights_only=True)
    latents = torch.zeros(count, 4, LATENT, LATENT)
    texts = torch.zeros(count, CAPTIONS, MAX_TOKENS, TEXT_WIDTH, dtype=torch.float16)
    share_and_run(_prepare, workers, vae, encoder, folder, seed, workers, latents, texts)
    empty = embed(encoder, CLIPTokenizer.from_pretrained(folder), [""])[0]
    data = {"latents": latents, "texts": texts, "empty": empty}
    torch.save(data, file)
    return data


def _open_budget(minutes: float, cache: Path) -> Budget:
    return Budget("unet", minutes, cache / "unet.pt", warmup=150)


def _work(
    number: int,
    unet: UNet2DConditionModel,
    latents: torch.Tensor,
    texts: torch.Tensor,
    empty: torch.Tensor,
    minutes: float,
    cache: Path,
    seed: int,
) -> None:
    """One worker's training loop; worker 0 also keeps the average, the log and the checkpoint."""
    average = Average(unet, DECAY)
    optimiser = torch.optim.AdamW(unet.parameters(), PEAK_RATE, (0.9, 0.99), weight_decay=0.01)
    state = {"unet": unet, "average": average, "optimiser": optimiser}
    budget = _open_budget(minutes, cache)
    budget.resume(**state)
    torch.manual_seed(seed * 1_000_003 + 10 * budget.step + number)
    signal = alphas_cumprod()
    snr = signal / (1 - signal)
    weight = (1 + snr) ** -SNR_POWER
    smooth = torch.ones(())
    while budget.left:
        set_rate(optimiser, budget.rate(PEAK_RATE))
        pick = torch.randint(len(latents), (BATCH,))
        clean = latents[pick]
        text = texts[pick, torch.randint(CAPTIONS, (BATCH,))].float()
        text[torch.rand(BATCH) < DROP_CAPTION] = empty.float()
        # One timestep from each of BATCH slices: less noise in the loss than free draws; the
        # power below one makes the slices narrower, hence draws denser, where it is noisiest.
        u = (torch.arange(BATCH) + torch.rand(BATCH)) / BATCH
        t = (u**TIME_POWER * len(signal)).long().clamp(max=len(signal) - 1)
        noise = torch.randn_like(clean)
        a = signal[t].view(-1, 1, 1, 1)
        noisy = (a.sqrt() * clean + (1 - a).sqrt() * noise).to(memory_format=torch.channels_last)
        velocity = a.sqrt() * noise - (1 - a).sqrt() * clean
        error = (unet(noisy, t, text).sample - velocity).square().mean(dim=(1, 2, 3))
        loss = (weight[t] * error).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        smooth = smooth.lerp(loss.detach(), 0.02)
        if number == 0:
            average.update(unet)
            budget.tick(smooth)
            budget.save(**state)
    if number == 0:
        budget.save(every=0, **state)


def train(
    minutes: float,
    cache: Path,
    seed: int,
    workers: int,
    data: dict[str, torch.Tensor],
    start: Path | None = None,
) -> None:
    """Train (or take up) the denoiser; the result is in the checkpoint, see `load`.

    `start` is an exported folder whose weights to begin with.
    """
    torch.manual_seed(seed)
    unet = new_unet().to(memory_format=torch.channels_last)
    if start is not None:
        earlier = UNet2DConditionModel.from_pretrained(start / "unet", torch_dtype=torch.float32)
        unet.load_state_dict(earlier.state_dict())
    share_and_run(
        _work, workers, unet, data["latents"], data["texts"], data["empty"], minutes, cache, seed
    )


def load(cache: Path) -> UNet2DConditionModel:
    """The denoiser with averaged weights, from the latest checkpoint - finished or not."""
    unet = new_unet()
    payload = torch.load(cache / "unet.pt", weights_only=True)
    unet.load_state_dict(payload["average"]["weights"])
    return unet.eval().requires_grad_(False)
