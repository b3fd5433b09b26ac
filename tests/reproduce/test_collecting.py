"""Tables against naive means and deviations."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from hexa.reporting import published
from hexa.reproduce import collecting, plan
from hexa.reproduce.studies import study
from tests.reproduce.conftest import costs_for, request_for, stored_run


def collected(name: str, data: str = "digits", **changes: object):  # type: ignore[no-untyped-def]
    chosen = study(name, data=data)
    request, costs = request_for(data, **changes), costs_for(chosen)
    jobs = plan.final_jobs(chosen, request, plan.best_rates(chosen, request, []), costs)
    runs = [stored_run(job) for job in jobs]
    return chosen, request, costs, runs, collecting.rows_of(chosen, request, costs, runs)


def test_numbers_are_the_mean_and_sample_deviation_over_seeds() -> None:
    chosen, request, _, runs, rows = collected("ablation", epochs=20, seeds=(0, 1, 5))
    assert len(rows) == 12
    parsed = list(csv.DictReader(io.StringIO(collecting.csv_text(rows))))
    assert len(parsed) == 12 * 2
    for row in parsed:
        arm = next(arm for arm in chosen.arms if arm.name == row["arm"])
        values = [
            result["metrics"]["top1"]
            for run in runs
            if (run["arm"], run["epochs"]) == (arm.key, int(row["epochs"]))
            for result in run["results"]
            if result["title"] == row["metric"]
        ]
        assert len(values) == 3
        assert float(row["mean"]) == pytest.approx(np.mean(values), abs=1e-4)
        assert float(row["std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-4)
    page = collecting.markdown(chosen, request, rows, [])
    first = rows[0].scores["k-NN top-1"]
    assert f"{np.mean(first):.1f} ± {np.std(first, ddof=1):.1f}" in page
    assert "the time of 20 epochs of Std" in page


def test_the_best_of_a_comparison_is_marked_in_its_table_alone() -> None:
    *_, rows = collected("ablation", epochs=20)
    for comparison in (collecting.EPOCHS, collecting.TIME):
        shown = collecting.table_rows(rows, comparison)
        assert [row["arm"] for row in shown] == list(dict.fromkeys(row.arm.name for row in rows))
    assert {row["epochs"] for row in collecting.table_rows(rows, collecting.EPOCHS)} == {"20"}


def test_one_seed_has_no_deviation() -> None:
    chosen, request, _, _, rows = collected("ablation", epochs=2, seeds=(0,))
    assert {row["std"] for row in csv.DictReader(io.StringIO(collecting.csv_text(rows)))} == {""}
    assert "±" not in collecting.markdown(chosen, request, rows, [])


def test_the_published_value_stands_beside_where_there_is_one() -> None:
    *_, rows = collected("table1", data="cifar10", epochs=4)
    shown = {row.arm.name: row.published for row in rows}
    assert shown == {"MoCo-v2": {"linear top-1": 89.4}, "HEXA-MoCo": {"linear top-1": 90.4}}
    *_, rows = collected("table1", data="digits", epochs=4)
    assert all(row.published == {} for row in rows)


def test_published_shares_of_labels_keep_their_columns() -> None:
    *_, rows = collected("table3", data="cifar10", epochs=4)
    assert all(row.published == {} for row in rows)  # published on ImageNet alone
    assert "10 % of the labels top5" in rows[0].scores


def test_a_row_is_found_whatever_stands_in_its_brackets() -> None:
    found = published.find(published.LOW_SHOT.rows, "DeepCluster-v2 (8-crop)", 800)
    assert found is not None
    assert found.values[0] == 53.5
    assert published.find(published.LINEAR.rows, "HEXA-D (8-crop)", 200).values[0] == 74.0  # type: ignore[union-attr]
    assert published.find(published.LINEAR.rows, "HEXA-D", 200).values[0] == 68.1  # type: ignore[union-attr]
    assert published.find(published.LINEAR.rows, "HEXA-D", 800) is None


def test_notes_tell_rates_at_the_edge_and_rounded_epochs() -> None:
    chosen, request, costs, _, _ = collected("ablation", epochs=4)
    search = [stored_run(job, top1=job.rate) for job in plan.search_jobs(chosen, request)]
    runs = [
        stored_run(job) for job in plan.final_jobs(chosen, request, plan.best_rates(chosen, request, search), costs)
    ]
    rows = collecting.rows_of(chosen, request, costs, runs)
    notes = collecting.notes_of(chosen, rows, search, runs)
    assert sum("largest rate" in note for note in notes) == 6
    # 4 epochs of one term are 4/3 of three: one epoch, which costs 3/4
    assert any(note.startswith("Std+Adv+Cmx: whole epochs come to 0.75") for note in notes)


def test_runs_of_other_seeds_are_left_out() -> None:
    chosen, _, costs, runs, _ = collected("ablation", epochs=4, seeds=(0, 1, 2))
    rows = collecting.rows_of(chosen, request_for(epochs=4, seeds=(1,)), costs, runs)
    assert {row.seeds for row in rows} == {(1,)}
