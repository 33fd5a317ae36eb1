"""The tutorial from its first step to its picture, answers.png: ``python run.py``, after `scanflow up`."""

import os

from app import app
from send import send

import scanflow as sf

SERVER = os.environ.get("SCANFLOW_URL", "http://127.0.0.1:46666")  # as `scanflow up` says it


def wait_for(client, after, *types):
    """Return the next event of one of these types after an event by its number."""
    for event in client.events_after(after, type=types, timeout_s=900):
        print(event.type, {name: event.data[name] for name in ("workflow", "columns", "version") if name in event.data})
        return event
    raise SystemExit(f"In vain waited for one of {', '.join(types)}. What is going on: scanflow events")


def draw(shares):
    """Draw the share of right answers of each window: pairs of what was sent, and the share."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    colors = ["tab:green" if "new model" in name else "tab:blue" for name, _ in shares]
    bars = axes.bar(
        [name.replace(", ", "\n") for name, _ in shares], [100 * share for _, share in shares], color=colors
    )
    axes.bar_label(bars, fmt="%.0f %%")
    axes.set(ylim=(0, 110), ylabel="right answers, %", title="Which topic? 500 texts each")
    figure.savefig("answers.png", dpi=80)
    return figure


def main():
    client = sf.Client(SERVER)
    client.run(app, "training")
    client.deploy(app, "serve")
    client.start_agents(app)
    shares = [("Python's own words, first model", send("old"))]
    after = client.newest_event()
    shares += [(f"other packages' words {window}, first model", send("new", window)) for window in (1, 2)]
    wait_for(client, after, "drift.found")
    verdict = wait_for(client, after, "model.promoted", "model.rejected")
    print(client.models("topics"))
    if verdict.type == "model.promoted":
        shares += [
            ("other packages' words 3, new model", send("new", 3)),
            ("Python's own words, new model", send("old")),
        ]
    draw(shares)


if __name__ == "__main__":
    main()
