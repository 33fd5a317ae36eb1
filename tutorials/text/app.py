"""Which topic is a question about? Text, a linear model, and agents that retrain it when people use other words."""

from collections import Counter
from functools import cache

import texts

import scanflow as sf


@cache
def known_words():
    counts = Counter(word for sentence in texts.read_sentences()[0] for word in set(texts.split_words(sentence)))
    return {word for word, count in counts.items() if count >= 3}


def describe(sentences):
    """Return a row for each text: the text, its number of words, and the share of words that fewer than three of the
    first texts had.

    Texts that all differ cannot be compared one by one. Columns that measure them can, and drift is seen in these.
    """
    import pandas as pd  # here, and not above: each agent loads this file, and needs no pandas

    words = [texts.split_words(sentence) for sentence in sentences]
    unknown = [sum(word not in known_words() for word in row) / max(len(row), 1) for row in words]
    return pd.DataFrame({"text": list(sentences), "words": [float(len(row)) for row in words], "unknown": unknown})


def data():
    import numpy as np

    sentences, topics = texts.read_sentences()
    return describe(sentences), np.array(topics)


def fit(x, y):
    """Train on the text alone: words and pairs of words, weighed by TF-IDF, and a linear model of them."""
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = make_column_transformer((TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), "text"))
    return make_pipeline(words, LogisticRegression(C=20, class_weight="balanced", max_iter=500)).fit(x, y)


def ground_truth(items, context):
    """Label texts: here by the package that each comes from; elsewhere people do, by `scanflow labels`."""
    from scanflow.drift.prediction_data import samples_of

    truth = {text: topic for new in (False, True) for text, topic in zip(*texts.read_sentences(new), strict=True)}
    samples = samples_of(context.tracker, items)
    return {item["id"]: truth[text] for item, text in zip(items, samples["text"], strict=True) if text in truth}


topics = sf.Service(name="topics", model="models:/topics@champion")
serve = sf.Workflow(name="serve", type="online", nodes=[topics], serving=sf.Serving(record=1))
detector = sf.drift.detection(model="topics", budget=300)
training = sf.drift.retraining(model="topics", fit=fit, data=data)
agents = [
    sf.Agent(
        name="tracker", template="tracker", parameters={"interval_s": 1, "again_after_s": 5, "min_predictions": 400}
    ),
    sf.Agent(
        name="checker",
        template="checker",
        parameters={"interval_s": 2, "cool_down_s": 10, "labeller": "app.py:ground_truth"},
    ),
    sf.Agent(name="planner", template="planner", parameters={"interval_s": 2, "cool_down_s": 10, "min_picked": 150}),
    sf.Agent(name="executor", template="executor", parameters={"interval_s": 1, "guard_s": 5}),
]
app = sf.Application(
    name="text", team="datascience", workflows=[serve, detector, training], agents=agents, tracker=sf.Tracker()
)
