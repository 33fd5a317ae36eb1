"""A step is a function: a test calls it. The last test runs the whole workflow, in a home folder of its own."""

import scanflow as sf

from app import app, load, select, train


def test_the_rates_are_tenths():
    assert load(count=3) == [0.1, 0.2, 0.3]


def test_the_nearer_rate_has_the_higher_score():
    assert train(rate=0.3)["score"] > train(rate=0.1)["score"]


def test_the_best_score_is_selected():
    assert (
        select([{"rate": 0.1, "score": 0.2}, {"rate": 0.3, "score": 1.0}])["rate"]
        == 0.3
    )


def test_the_workflow_selects_the_best_rate(tmp_path):
    run = sf.Client(home=tmp_path).run(app, parameters={"count": 5})
    assert run.output("select") == {"rate": 0.3, "score": 1.0}
