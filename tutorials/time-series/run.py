"""The tutorial from its first step to its picture, forecast.png: ``python run.py``."""

import pandas as pd
from app import app
from weather import read_days

import scanflow as sf


def draw(checks, before, after):
    """Draw the highest temperatures, which quarters each comparison takes for drift, and both models' mean errors."""
    import matplotlib.pyplot as plt

    figure, (top, below, last) = plt.subplots(3, figsize=(8, 6), height_ratios=(4, 1, 1), layout="constrained")
    week = read_days()["temp_max"].resample("W").mean()
    usual = week[:"2013"].groupby(week[:"2013"].index.isocalendar().week).mean()
    top.plot(week.index, week, label="mean of a week")
    weeks = week["2014":].index
    top.plot(
        weeks, usual.reindex(weeks.isocalendar().week), color="grey", ls=":", label="the same week in 2012 and 2013"
    )
    top.set(title="Highest temperature of a day in Seattle, °C")
    top.legend(loc="upper left", ncols=2)
    for row, name in enumerate(("same season", "all days")):
        for check in checks:
            color = "tab:red" if check[name]["drifted"] else "lightgrey"
            below.barh(row, 89, left=pd.Timestamp(check["quarter"]), height=0.8, color=color)
    below.set(yticks=(0, 1), yticklabels=("the same season", "all days before"), xlim=top.get_xlim())
    below.set_title("Red: drift, compared with …", fontsize=10)
    last.barh(("trained until February 2015", "trained until 2014"), (after, before), color=("tab:green", "tab:orange"))
    last.set_title("Mean of forecast less truth in February and March 2015, °C", fontsize=10)
    figure.savefig("forecast.png", dpi=80)
    return figure


def main():
    client = sf.Client()
    print("Mean error, °C:", client.output("split", run=client.run(app, "split").name))
    checks = client.output("check", run=client.run(app, "detector").name)
    for check in checks:
        print(check)
    client.run(app, "training")
    retrained = client.run(app, "training", parameters={"until": "2015-02-01", "days": 59}).name
    before, after = (client.output("train", f"{who}_off", run=retrained) for who in ("champion", "challenger"))
    print(f"Off by {before} °C before, and by {after} °C when trained again")
    draw(checks, before, after)


if __name__ == "__main__":
    main()
