"""The data and the model. How the agents decide is Scanflow's: scanflow strategies shows it."""

from app import app, data, draw_loans, fit, repays


def test_the_first_applicants_are_young():
    x, y = data()
    assert len(x) == len(y)
    assert x["age"].max() < 50


def test_the_model_is_right_of_the_young_and_wrong_of_the_old():
    model = fit(*data())
    young, old = draw_loans(300, (18, 45), seed=1), draw_loans(300, (50, 90), seed=1)
    assert (model.predict(young) == repays(young)).mean() > 0.9
    assert (model.predict(old) == repays(old)).mean() < 0.9


def test_the_four_agents_watch_the_application():
    names = [agent.name for agent in app.agents]
    assert names == ["tracker", "checker", "planner", "executor"]
