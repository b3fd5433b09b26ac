"""InfoNCE against torch's cross-entropy over the written-out logits."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hexa.ops.contrastive import finds_other_view, info_nce, is_nearest, nt_xent


def unit(*shape: int, seed: int = 0) -> Tensor:
    """Unit rows in fp64."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return F.normalize(rows, dim=-1)


def naive(
    q: Tensor,
    k: Tensor,
    n: Tensor,
    temperature: float,
    extra: Tensor | None,
) -> Tensor:
    positive = (q * k).sum(-1, keepdim=True)
    between = [] if extra is None else [extra]
    logits = torch.cat([positive, *between, q @ n.T], -1) / temperature
    shape = q.shape[:-1]
    target = torch.zeros(shape, dtype=torch.long)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return loss.view(shape)


@pytest.mark.parametrize("temperature", [0.07, 0.2])
@pytest.mark.parametrize("further", [0, 3])
def test_info_nce_cross_entropy(temperature: float, further: int) -> None:
    """Value and gradients equal cross-entropy; minus infinity excludes a further similarity."""
    q = unit(2, 5, 8).requires_grad_()
    extra = torch.rand(2, 5, further, dtype=torch.float64).requires_grad_()
    excluded = extra.masked_fill(torch.rand(2, 5, further) < 0.3, -torch.inf)
    weight = torch.rand(2, 5, dtype=torch.float64)
    found = []
    for function in (info_nce, naive):
        beside = excluded if further else None
        loss = function(
            q,
            unit(2, 5, 8, seed=1),
            unit(13, 8, seed=2),
            temperature,
            beside,
        )
        learned = [q, extra] if further else [q]
        slopes = torch.autograd.grad((weight * loss).sum(), learned, retain_graph=True)
        found.append([loss, *slopes])
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)


@pytest.mark.parametrize("positive_included", [False, True])
def test_info_nce_small_temperature(positive_included: bool) -> None:
    """With few keys and a small τ no term underflows in fp32."""
    n = unit(2, 8, seed=2)
    q = unit(1, 64, 8)
    k = n[:1].expand(1, 64, 8)
    others = n[1:] if positive_included else n
    exact = q.clone().requires_grad_()
    losses = naive(exact, k, others, 0.005, None)
    losses.sum().backward()
    rows = q.float().requires_grad_()
    loss = info_nce(rows, k.float(), n.float(), 0.005, positive_included=positive_included)
    expected = naive(q, k, others, 0.005, None)
    torch.testing.assert_close(loss.double(), expected, atol=1e-3, rtol=0)
    loss.sum().backward()
    torch.testing.assert_close(
        rows.grad.double(),
        exact.grad,
        atol=0.02,
        rtol=0,
    )


def test_info_nce_bf16() -> None:
    """Embeddings in bf16 are scored in fp32."""
    q = unit(1, 4, 6).bfloat16()
    k = unit(1, 4, 6, seed=1).float()
    n = unit(9, 6, seed=2).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = info_nce(q, k, n, 0.2)
    assert found.dtype == torch.float32
    expected = info_nce(q.float(), k, n, 0.2)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_nearest_positive_loop() -> None:
    q = unit(2, 20, 3)
    k = unit(2, 20, 3, seed=1)
    n = unit(4, 3, seed=2)
    for beside in (None, torch.rand(2, 20, 2, dtype=torch.float64) - 0.5):
        found = is_nearest(q, k, n, beside)
        for v in range(2):
            for b in range(20):
                others = [float(q[v, b] @ row) for row in n]
                if beside is not None:
                    others += beside[v, b].tolist()
                positive = float(q[v, b] @ k[v, b])
                assert bool(found[v, b]) == (positive > max(others))
        assert 0 < int(found.sum()) < 40


@pytest.mark.parametrize("views", [2, 3])
def test_nt_xent_loop(views: int) -> None:
    """Images that the query shows are not negatives in its own view; in the other views the same
    image is."""
    size = 6
    batch = 3
    temperature = 0.3
    query = unit(views, batch, 8)
    dictionary = unit(views, size, 8, seed=1)
    own = torch.tensor([4, 0, 2])
    shown = torch.tensor([[1], [5], [0]])
    losses = nt_xent(query, dictionary, own, shown, temperature)
    nearest = finds_other_view(query, dictionary, own, shown)
    for v in range(views):
        for i in range(batch):
            hidden = {(v, int(own[i])), *((v, int(image)) for image in shown[i])}
            every = itertools.product(range(views), range(size))
            entries = [entry for entry in every if entry not in hidden]
            scores = torch.stack([query[v, i] @ dictionary[entry] for entry in entries])
            positives = [entries.index((w, int(own[i]))) for w in range(views) if w != v]
            each = [
                F.cross_entropy(scores / temperature, torch.tensor(positive))
                for positive in positives
            ]
            torch.testing.assert_close(losses[v, i], torch.stack(each).mean())
            found = bool(nearest[v, i])
            expected = int(scores.argmax()) in positives
            assert found == expected
