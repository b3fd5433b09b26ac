"""ClusterFit and AdvCL against their formulas, and the clusters they learn from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hexa.config import ConfigError
from hexa.core import MAIN
from hexa.methods import AdvCLConfig, ClusterFitConfig
from hexa.methods.simclr import among_themselves, in_dictionary
from hexa.testing.cases import CasePasses
from tests.laws.cases import Case
from tests.methods.setting import small
from tests.methods.test_teacher import load


def test_clusters_are_those_of_the_teachers_features_and_stay() -> None:
    case = Case("clusterfit")
    method = case.build()  # after the start of its first epoch
    passes = CasePasses(case.made(), torch.float64)
    seen = torch.full_like(method.get_buffer("clusters"), -1)
    for batch in passes.images():
        rows = F.normalize(method.get_submodule("teacher")(batch.crops[0]))
        for number, centroids in enumerate(method.get_buffer("centroids").split([6, 4])):
            seen[number, batch.index] = (rows @ centroids.T).argmax(1).int()
    assert torch.equal(seen, method.get_buffer("clusters"))
    before = seen.clone()
    for parameter in method.parameters():
        parameter.data.add_(1)
    assert method.start_epoch(1, passes) == {}
    assert torch.equal(before, method.get_buffer("clusters"))
    strangers = replace(case.batch(), known=False, index=torch.full((len(case.batch()),), 10**6))
    rows = F.normalize(method.get_submodule("teacher")(strangers.crops[0]))
    nearest = [(rows @ part.T).argmax(1) for part in method.get_buffer("centroids").split([6, 4])]
    assert torch.equal(method.pseudo_labels(strangers, None).clusters, torch.stack(nearest))


def test_the_loss_is_the_mean_cross_entropy_of_linear_classifiers() -> None:
    method, data = Case("clusterfit").build(), Case("clusterfit").batch()
    labels, embedding = method.pseudo_labels(data, None), method.embed(data.crops, MAIN)
    losses, hits = method.loss(embedding, labels), method.correct(embedding, labels)
    assert hits is not None
    for view in range(2):
        for image in range(len(data)):
            own = method.get_buffer("clusters")[:, data.index[image]].long()
            parts = embedding[view, image].split([6, 4])
            expected = torch.stack(
                [F.cross_entropy(one, of) for one, of in zip(parts, own, strict=True)]
            ).mean()
            torch.testing.assert_close(losses[view, image], expected)
            right = [int(one.argmax()) == int(of) for one, of in zip(parts, own, strict=True)]
            assert float(hits[view, image]) == sum(right) / 2


def test_advcl_adds_the_clusters_to_the_contrast() -> None:
    fields: dict[str, Any] = {"cluster_weight": 0.3, "temperature": 0.4}
    method: Any = Case("advcl", fields).build()
    data = Case("advcl").batch()
    embedding = method.embed(data.crops, MAIN).detach()
    rows, scores = embedding[..., :8], embedding[..., 8:]
    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(3, len(data)).double())
    labels = method.pseudo_labels(data, embedding)
    clusters = method.clusters.loss(scores, method.clusters.pseudo_labels(data, None))
    torch.testing.assert_close(
        method.clean_loss(embedding, labels), among_themselves(rows, 0.4) + 0.3 * clusters
    )
    find = in_dictionary(data, rows)
    assert torch.equal(labels.contrast.dictionary, find.dictionary)
    # a query that is the clean batch is compared with what its views are among themselves
    torch.testing.assert_close(method.loss(embedding, labels), method.clean_loss(embedding, labels))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"method\.num_clusters: 32 are more than the 16 images; use \[2,2\]"
    ):
        small(ClusterFitConfig(num_clusters=(32, 17)))
    with pytest.raises(
        ConfigError, match=r"method\.clusters\.num_clusters: 500 are more than the 16 images"
    ):
        small(AdvCLConfig())
    made = small(ClusterFitConfig(num_clusters=(3,), teacher="means"), load=load)  # any width
    assert made.get_buffer("centroids").shape == (3, 2)
    (note,) = small(ClusterFitConfig(num_clusters=(3,))).notes()
    assert note.endswith("which teach nothing; give --start BACKBONE, or --method.teacher BACKBONE")


def test_advcl_names_the_fields_of_its_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    method = small(AdvCLConfig(clusters=ClusterFitConfig(num_clusters=(12,))))
    assert method.notes()[0].endswith("or --method.clusters.teacher BACKBONE")
    case = Case("advcl")
    few = CasePasses(case.made(), torch.float64)
    monkeypatch.setattr(few, "images", lambda: iter([case.batch()]))
    with pytest.raises(
        ConfigError, match=r"method\.clusters\.num_clusters: 12 clusters for 8 rows"
    ):
        method.start_epoch(0, few)
    with pytest.raises(
        ConfigError, match=r"method\.clusters\.teacher: 'means' needs Setting\(load="
    ):
        small(AdvCLConfig(clusters=ClusterFitConfig(num_clusters=(3,), teacher="means")))
