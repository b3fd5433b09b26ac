"""Contrastive losses over patches and over a memory with noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def patch_nce(
    predictions: Tensor,
    targets: Tensor,
    ahead: int,
    own: Tensor,
    shown: Tensor,
) -> tuple[Tensor, Tensor]:
    """InfoNCE of predicted patches among all patches of a batch, in fp32 (CPC; F29).

        ℓ_(i,r,c) = −log [ exp(p_(i,r,c) · t_(own_i, r+k, c)) / Σ exp(p_(i,r,c) · t) ],   k = ahead,

    the sum over all patches t of `targets`, but those at this place of the other images that the view shows.
    predictions: [..., B, D, G, G], of which the last k rows predict nothing. targets: [M, D, G, G]; both may take a
    gradient. own: int64 [B], shown: [B, S], indices into targets. Returns ℓ [..., B, G − k, G], and whether the own
    patch is the most likely one.
    """
    grid = targets.shape[-1]
    with torch.autocast(predictions.device.type, enabled=False):
        dtype = torch.promote_types(predictions.dtype, torch.float32)
        upper = predictions[..., : grid - ahead, :]
        query = upper.flatten(-2).mT.to(dtype)  # [..., B, (G − k)·G, D]
        keys = targets.to(dtype).movedim(1, -1).flatten(0, 2)  # [M·G², D]
        scores = query @ keys.T  # [..., B, (G − k)·G, M·G²]
        below = torch.arange((grid - ahead) * grid, device=own.device)
        place = ahead * grid + below
        leading = scores.shape[:-1]
        area = grid**2
        patch = own[:, None] * area + place
        patch = patch[..., None].expand(*leading, 1)
        positive = scores.gather(-1, patch)
        hidden = shown[:, None] * area + place[:, None]
        hidden = hidden.expand(*leading, -1)
        if shown.shape[1]:
            scores = scores.scatter(-1, hidden, -torch.inf)
            # an image that is mixed with itself hides nothing of it
            scores = scores.scatter(-1, patch, positive)
        total = scores.logsumexp(-1)
        losses = total - positive.squeeze(-1)
        likeliest = scores.argmax(-1)
        hits = likeliest == patch.squeeze(-1)
    rows = grid - ahead
    shape = (*losses.shape[:-1], rows, grid)
    return losses.view(shape), hits.view(shape)


def nce(
    query: Tensor,
    positive: Tensor,
    noise: Tensor,
    temperature: float,
    partition: float,
    size: int,
) -> Tensor:
    """Noise-contrastive estimation over a memory of N = `size` images, in fp32 (InstDisc; F29).

        P(i|q) = exp(m_i·q/τ) / Z,   h(i) = P(i|q) / (P(i|q) + n/N),   ℓ = −log h(own) − Σ_j log(1 − h(j))

    summed over n rows of noise. query, positive: [..., D], noise: [n, D], unit rows. partition: Z. Returns [...].
    """
    with torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        query = query.to(dtype)
        positive = positive.to(dtype)
        noise = noise.to(dtype)
        # log(h / (1 − h)) = m·q/τ − log Z − log(n/N)
        shift = math.log(partition) + math.log(len(noise) / size)
        product = (query * positive).sum(-1)
        own = product / temperature
        others = query @ noise.T / temperature
        attraction = functional.softplus(shift - own)
        repulsion = functional.softplus(others - shift)
        return attraction + repulsion.sum(-1)
