"""The data, the model and the description of the service, each on its own."""

from app import app, draw_loans, fit


def test_the_table_has_two_columns_and_a_label_for_each_row():
    x, y = draw_loans(20, seed=0)
    assert list(x.columns) == ["income", "loan"]
    assert len(x) == len(y) == 20


def test_the_model_tells_who_repays():
    x, y = draw_loans(500, seed=0)
    model = fit(x, y, trees=20)
    x_test, y_test = draw_loans(200, seed=1)
    assert model.score(x_test, y_test) > 0.8


def test_the_service_has_the_model_in_use():
    (service,) = app.workflow("serve").nodes
    assert service.model == "models:/my-app@champion"
