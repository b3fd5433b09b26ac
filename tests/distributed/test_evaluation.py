"""Features that several processes extract for one are those of one process, bit for bit, whatever the shares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hexa.config import UserError
from hexa.data.loading import evaluation_stream, loaders
from hexa.evaluation import evaluate, protocol as protocols, supervised
from hexa.evaluation.protocols import linear
from hexa.runtime import processes
from hexa.weights.pretrained import random_backbone, save_backbone
from tests.distributed.together import run_together
from tests.evaluation.given import QUIET, SMALL, noise_images

#: 26 images to learn from and 10 to be asked about.
FILES = {
    f"{split}/{name}/{number:02d}.png": (12, 9 + number)
    for split, count in (("train", 13), ("test", 5))
    for name in ("ant", "bee")
    for number in range(count)
}


def photographs(folder: Path, broken: tuple[str, ...] = ()) -> str:
    data = noise_images(folder, FILES)
    for path in broken:
        (folder / path).write_bytes(b"no picture")
    return data


@contextmanager
def watched() -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """A list of the features and positions that a task receives."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    extract = protocols.extract_together

    def kept(*asked: Any, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(extract(*asked, **how))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocols, "extract_together", kept)
        yield seen


def work(
    out: str, protocol: str, backbone: str, data: str, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the content of `watched`, the result as JSON, and the batches that were made."""
    made: list[int] = []
    getitem = evaluation_stream._EvaluationPlan.__getitem__

    def counted(plan: Any, number: int) -> Any:
        made.append(number)
        return getitem(plan, number)

    evaluation_stream._EvaluationPlan.__getitem__ = counted  # type: ignore[method-assign]
    with watched() as seen:
        result = evaluate(protocol, backbone, data, out=out, num_workers=0, **QUIET, **options)
    assert processes.world_size() > 1, "and is so again afterwards"
    return seen, json.dumps(result), made


@pytest.mark.parametrize(
    ("protocol", "own", "count"),
    [
        ("knn", {"k": 3}, 3),
        ("linear", {"epochs": 3}, 2),
        ("probe", {}, 2),
    ],
)
def test_feature_extraction_shares(
    tmp_path: Path, protocol: str, own: dict[str, Any], count: int
) -> None:
    """26 and 10 images in batches of 4, one of them broken: 7 and 3 batches, the last ones smaller."""
    data = photographs(tmp_path / "photos", ("train/bee/03.png",))
    backbone = str(save_backbone(random_backbone(SMALL, 12), tmp_path / "b.safetensors"))
    options: dict[str, Any] = {"extraction_batch": 4, **own}
    parts = [3] if protocol == "linear" else [7, 3]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with watched() as one:
            alone = evaluate(protocol, backbone, data, num_workers=0, **QUIET, **options)
    finally:
        torch.set_num_threads(threads)
    out = tmp_path / "out.json"
    ended = run_together(count, work, str(out), protocol, backbone, data, options)
    (many, *_), results, batches = zip(*ended, strict=True)
    assert len(many) == len(one) == len(parts)
    for found, expected in zip(many, one, strict=True):
        assert all(map(torch.equal, found, expected))
    for result in map(json.loads, (*results, out.read_text())):
        assert result | {"seconds": 0} == json.loads(json.dumps(alone | {"seconds": 0})), (
            "but for how long it took"
        )
    shares = [
        [n for total in reversed(parts) for n in range(rank, total, count)] for rank in range(count)
    ]
    assert [sorted(made) for made in batches] == [sorted(share) for share in shares], (
        "each batch once"
    )


def learned(backbone: str, data: str, options: dict[str, Any]) -> tuple[torch.Tensor, Any, int]:
    """Weights of the classifier, the result, and the images that this process decoded for training."""
    made: list[torch.nn.Linear] = []
    shown: list[int] = []
    original = linear.new_classifier
    epoch = supervised.AugmentedImages.epoch

    def kept(*given: Any) -> torch.nn.Linear:
        made.append(original(*given))
        return made[-1]

    def counted(images: Any, number: int) -> Iterator[Any]:
        for batch in epoch(images, number):
            shown.append(len(batch[0]))
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "new_classifier", kept)
        patch.setattr(supervised.AugmentedImages, "epoch", counted)
        result = evaluate("linear", backbone, data, num_workers=0, **QUIET, **options)
    return made[0].weight.detach(), result, sum(shown)


@pytest.mark.parametrize(
    ("sizes", "images", "batch", "shown", "notes"),
    [
        ("of one size", 26, 10, [13, 13], 0),  # 10, 10, and a last batch of 6
        ("of one size", 26, 5, [13, 13], 1),  # six of 4, and a last batch of 2
        ("of one size", 25, 8, [12, 13], 0),  # three of 8, and a last batch of 1
        ("different", 26, 8, [12, 12], 1),  # three of 8, from the loader; two images are left out
    ],
)
def test_linear_shares(
    tmp_path: Path, sizes: str, images: int, batch: int, shown: list[int], notes: int
) -> None:
    """Two processes train on a share of every batch each: the classifier and accuracies of one process."""
    files = FILES if sizes == "different" else dict.fromkeys(FILES, (12, 12))
    data = noise_images(tmp_path / "photos", files)
    backbone = str(save_backbone(random_backbone(SMALL, 12), tmp_path / "b.safetensors"))
    options: dict[str, Any] = {"epochs": 3, "learning_rate": 1.0, "extraction_batch": 4}
    options["images"] = images
    even = options | {"batch_size": batch // 2 * 2}
    expected, alone, count = learned(backbone, data, even)
    ended = run_together(2, learned, backbone, data, options | {"batch_size": batch})
    weights, results, counts = zip(*ended, strict=True)
    assert list(counts) == [3 * here for here in shown]
    assert sum(counts) == count
    assert torch.equal(*weights)
    torch.testing.assert_close(weights[0], expected, rtol=1e-4, atol=1e-5)
    for result in results:
        assert result["metrics"] == alone["metrics"]
        assert result["details"] == alone["details"]
        assert result["options"] == alone["options"]
        assert sum("batch" in note for note in result["notes"]) == notes


def ends_alike(backbone: str, data: str) -> None:
    getitem = loaders.workers.CropPlan.__getitem__

    def failing(plan: Any, key: tuple[int, int]) -> Any:
        if key[0] == 1 and processes.rank() == 1:
            raise UserError("image 7 is gone")
        return getitem(plan, key)

    loaders.workers.CropPlan.__getitem__ = failing  # type: ignore[method-assign]
    options: dict[str, Any] = {"epochs": 3, "batch_size": 8, "extraction_batch": 4}
    with pytest.raises(UserError, match="image 7 is gone"):
        evaluate("linear", backbone, data, num_workers=0, **QUIET, **options)


def test_linear_error_in_share(tmp_path: Path) -> None:
    """What one process cannot read ends the training in all of them."""
    data = photographs(tmp_path / "photos")
    backbone = str(save_backbone(random_backbone(SMALL, 12), tmp_path / "b.safetensors"))
    run_together(2, ends_alike, backbone, data)


def fails(backbone: str, data: str, said: str, lacking: bool) -> None:
    if lacking and processes.rank() == 1:
        data = data + "-elsewhere"
    with pytest.raises(UserError, match=said):
        evaluate("knn", backbone, data, num_workers=0, **QUIET, extraction_batch=4)


@pytest.mark.parametrize(
    "problem", ["no source", "a helper has none", "broken in the helper's share", "no image"]
)
def test_evaluation_error_all_processes(tmp_path: Path, problem: str) -> None:
    """A mistake ends the evaluation in all processes."""
    broken = {"broken in the helper's share": [*FILES][4:6], "no image": [*FILES]}.get(problem, [])
    data = photographs(tmp_path / "photos", tuple(broken))
    backbone = str(save_backbone(random_backbone(SMALL, 12), tmp_path / "b.safetensors"))
    said = "no such folder" if problem in ("no source", "a helper has none") else "cannot be read"
    data = data + "-nowhere" if problem == "no source" else data
    run_together(2, fails, backbone, data, said, problem == "a helper has none")


def crashes() -> None:
    def work() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(
        RuntimeError, match="a bug" if processes.is_main() else "the main process failed"
    ):
        processes.from_main(work)


def test_failed_main_process() -> None:
    """Helpers do not wait for a main process that failed."""
    run_together(2, crashes)
