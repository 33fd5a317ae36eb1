"""Teach the model in use what it did not know: its last layers learn from old and newly labelled pictures together.

The new model, the challenger, is judged beside the champion on the same pictures, clean and drifted, which neither has
been trained on. Both accuracies are written down; whether it takes over is for others to decide.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported: errors only
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")

import mlflow
import numpy as np
from steps.digits import class_of
from steps.quiet import stderr_to

import scanflow as sf

TOLD = 20


class Pictures(NamedTuple):
    """Pictures (n, 28, 28), uint8, and their labels (n,)."""

    x: Any
    y: Any


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_uri", required=True, help="the champion: models:/mnist_cnn@champion, or a .keras file")
    parser.add_argument(
        "--model_name", default="mnist_cnn", help="registered as a version of this; '' to leave that out"
    )
    parser.add_argument("--picked_path", required=True, help="labelled points: an .npz file with x and y")
    for name in ("x_train", "y_train", "x_test", "y_test"):
        parser.add_argument(f"--{name}_path", required=True)
    parser.add_argument("--x_drifted_path", default="", help="drifted pictures to judge by; else some points are kept")
    parser.add_argument("--y_drifted_path", default="", help="and their labels")
    parser.add_argument("--kept_share", type=float, default=0.25, help="which share of the points is kept to judge by")
    parser.add_argument("--trained_layers", type=int, default=2, help="so many last layers with weights learn")
    parser.add_argument(
        "--picked_share", type=float, default=0.4, help="of the pictures in an epoch, by repeating points"
    )
    parser.add_argument("--train_size", type=int, default=4000, help="so many old pictures, drawn at random")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if bool(arguments.x_drifted_path) != bool(arguments.y_drifted_path):
        parser.error("--x_drifted_path and --y_drifted_path go together")
    for name in ("kept_share", "picked_share"):
        if not 0 < getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: give a share between 0 and 1")
    for name in ("epochs", "trained_layers", "batch_size", "train_size"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}: give 1 or more")
    return arguments


def keras_model(uri: str) -> Any:
    if uri.endswith(".keras"):
        from tensorflow import keras

        return keras.models.load_model(uri)
    return mlflow.keras.load_model(uri)


def pair(x_path: str, y_path: str) -> Pictures:
    try:
        x, y = np.load(x_path, allow_pickle=False), np.load(y_path, allow_pickle=False)
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {x_path} and {y_path} cannot be read as .npy files ({error}).")
    return fitting(x_path, x, y)


def points(path: str) -> Pictures:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"Error: {path} is no .npz file with x and y ({error}). Write the labels of the picked points as y.")
    if y.shape != (len(x),):
        return fitting(path, x, y)
    classes = [class_of(label) for label in y.tolist()]
    fits = np.array([one is not None for one in classes], dtype=bool)
    if wrong := [label for label, one in zip(y.tolist(), classes, strict=True) if one is None]:
        told = ", ".join(f"{label!r} ({count})" for label, count in Counter(wrong).most_common(TOLD))
        print(f"Left out {len(wrong)} of {len(y)} points, whose labels are no digits from 0 to 9: {told}")
        print("A label is corrected by: scanflow labels --give ID=LABEL --replace")
        if not fits.any():
            sys.exit(f"Error: {path}: none of the {len(y)} labels is a whole number from 0 to 9. Correct them.")
    sf.output("n_left_out", len(wrong))
    return fitting(path, x[fits], np.array([one for one in classes if one is not None], dtype=np.uint8))


def fitting(what: str, x: Any, y: Any) -> Pictures:
    if x.ndim != 3 or x.shape[1:] != (28, 28) or y.shape != (len(x),) or len(x) == 0:
        sys.exit(
            f"Error: {what}: pictures {x.shape} with labels {y.shape}; needed are (n, 28, 28) with (n,), n above 0."
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() > 9:
        these = f"{y.dtype}, {y.min()} to {y.max()}" if y.dtype.kind in "iuf" else f"{y.dtype}"
        sys.exit(f"Error: {what}: labels are whole numbers from 0 to 9; these are {these}.")
    return Pictures(x, y)


def to_judge_by(
    arguments: argparse.Namespace, picked: Pictures, generator: np.random.Generator
) -> tuple[Pictures, ...]:
    """Return the points to learn from, and drifted pictures to judge by; none is in both."""
    if arguments.x_drifted_path:
        drifted = pair(arguments.x_drifted_path, arguments.y_drifted_path)
        learnt = {picture.tobytes() for picture in picked.x}
        unseen = np.array([picture.tobytes() not in learnt for picture in drifted.x])
        if not unseen.any():
            sys.exit(f"Error: all of {arguments.x_drifted_path} is among the points to learn from. Give others.")
        return picked, Pictures(drifted.x[unseen], drifted.y[unseen])
    order = generator.permutation(len(picked.x))
    kept = max(1, round(len(order) * arguments.kept_share))
    if kept == len(order):
        sys.exit(
            "Error: there is one labelled point; at least two are needed, to learn from one and judge by the other."
        )
    learnt_at, kept_at = np.sort(order[kept:]), np.sort(order[:kept])
    return Pictures(picked.x[learnt_at], picked.y[learnt_at]), Pictures(picked.x[kept_at], picked.y[kept_at])


def mixture(old: Pictures, new: Pictures, size: int, share: float, generator: np.random.Generator) -> Pictures:
    """Return old and new pictures, the new ones repeated until they are about that share; each at least once."""
    these = generator.permutation(len(old.x))[:size]
    wanted = max(len(new.x), round(len(these) * share / (1 - share)))
    again = np.resize(generator.permutation(len(new.x)), wanted)
    x, y = np.concatenate([old.x[these], new.x[again]]), np.concatenate([old.y[these], new.y[again]])
    order = generator.permutation(len(x))
    return Pictures(x[order], y[order])


def freeze(model: Any, trained: int) -> list[str]:
    """Let only the last layers that have weights learn; return their names."""
    weighted = [layer for layer in model.layers if layer.weights]
    learning = weighted[-trained:]
    for layer in weighted:
        layer.trainable = layer in learning
    return [layer.name for layer in learning]


def right(model: Any, pictures: Pictures) -> Any:
    """Return which pictures a model names rightly, (n,)."""
    return model.predict(pictures.x, batch_size=256, verbose=0).argmax(axis=1) == pictures.y


def accuracies(on_clean: Any, on_drifted: Any) -> dict[str, float]:
    clean, drifted = float(on_clean.mean()), float(on_drifted.mean())
    return {"clean": clean, "drifted": drifted, "accuracy": (clean + drifted) / 2}


def slice_of(name: str, champion: Any, challenger: Any) -> dict[str, Any]:
    """Return how both answered the same pictures, as the planner takes it."""
    known = {"name": name, "n": len(champion), "champion_right": int(champion.sum())}
    return known | {"challenger_right": int(challenger.sum()), "gained": int((challenger & ~champion).sum())}


def registered(name: str, model_uri: str, tags: dict[str, str]) -> int:
    """Return the model's new version; the one that this very step registered before it was interrupted, if it did."""
    client = mlflow.MlflowClient()
    mine = {key: tags[key] for key in ("scanflow.run", "scanflow.step")}
    known = client.search_model_versions(f"name='{name}'") if mine["scanflow.run"] else []
    before = [version for version in known if mine.items() <= version.tags.items()]
    if before:
        return int(before[0].version)
    return int(mlflow.register_model(model_uri, name, tags=tags).version)


def main() -> None:
    arguments = arguments_of()
    generator = np.random.default_rng(arguments.seed)
    old, clean = (
        pair(arguments.x_train_path, arguments.y_train_path),
        pair(arguments.x_test_path, arguments.y_test_path),
    )
    new, drifted = to_judge_by(arguments, points(arguments.picked_path), generator)
    with stderr_to(sf.output_dir() / "tensorflow.log"):
        import tensorflow as tf

        keras = tf.keras
        model = keras_model(arguments.model_uri)
    keras.utils.set_random_seed(arguments.seed)
    tf.config.experimental.enable_op_determinism()

    before = right(model, clean), right(model, drifted)
    champion = accuracies(*before)
    learning = freeze(model, arguments.trained_layers)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    given = mixture(old, new, arguments.train_size, arguments.picked_share, generator)

    run, step = os.environ.get("SCANFLOW_RUN", ""), os.environ.get("SCANFLOW_STEP", "retrain")
    with mlflow.start_run(run_name=step):
        mlflow.set_tags({"scanflow.run": run, "champion": arguments.model_uri})
        mlflow.log_params(
            {
                "epochs": arguments.epochs,
                "batch_size": arguments.batch_size,
                "seed": arguments.seed,
                "trained_layers": ",".join(learning),
                "picked": len(new.x),
                "train_size": len(given.x),
                "judged_clean": len(clean.x),
                "judged_drifted": len(drifted.x),
            }
        )
        model.fit(given.x, given.y, epochs=arguments.epochs, batch_size=arguments.batch_size, verbose=2)
        after = right(model, clean), right(model, drifted)
        challenger = accuracies(*after)
        metrics = {f"champion_{name}": value for name, value in champion.items()}
        metrics |= {f"challenger_{name}": value for name, value in challenger.items()}
        mlflow.log_metrics(metrics)
        logged = mlflow.keras.log_model(
            model,
            name="model",
            signature=mlflow.models.infer_signature(clean.x[:8], model.predict(clean.x[:8], verbose=0)),
            pip_requirements=[f"{library.__name__}=={library.__version__}" for library in (tf, keras, np)],
        )

    (sf.output_dir() / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    model.save(Path(sf.output_dir()) / "model.keras")
    for name, value in metrics.items():
        sf.output(name, value)
    sf.output("slices", [slice_of(*each) for each in zip(("clean", "current"), before, after, strict=True)])
    sf.output("model_uri", logged.model_uri)
    if (number := arguments.model_uri.rpartition("/")[2]).isdecimal():
        sf.output("champion_version", int(number))
    if arguments.model_name:
        tags = {"accuracy": f"{challenger['accuracy']:.4f}", "scanflow.run": run, "scanflow.step": step}
        version = registered(arguments.model_name, logged.model_uri, tags)
        sf.output("version", version)
        print(f"Registered as models:/{arguments.model_name}/{version}; the champion is as it was")
    print(f"{'':12}{'clean':>8}{'drifted':>9}{'mean':>8}")
    for who, each in (("champion", champion), ("challenger", challenger)):
        print(f"{who:12}{each['clean']:8.4f}{each['drifted']:9.4f}{each['accuracy']:8.4f}")


if __name__ == "__main__":
    main()
