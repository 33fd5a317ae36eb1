"""The weather of Seattle, a row for each day of 2012 to 2015, and what a forecast is made of."""

from pathlib import Path

import numpy as np
import pandas as pd

HORIZON = 3
"""The forecast is for so many days ahead."""

FILE = Path(__file__).parent / "seattle-weather.csv"


def read_days():
    return pd.read_csv(FILE, parse_dates=["date"], index_col="date")


def build_samples():
    """Return what is known on a day, and the highest temperature three days later: both by the day of the forecast."""
    days = read_days()
    angle = 2 * np.pi * days.index.day_of_year / 365.25  # the season: the last day of a year is near the first
    x = days.assign(week=days["temp_max"].rolling(7).mean(), sin=np.sin(angle), cos=np.cos(angle))
    y = days["temp_max"].shift(-HORIZON)
    complete = x.notna().all(axis=1) & y.notna()
    return x[complete], y[complete]


def select_known(x, y, until):
    """Return the samples whose answer was known on the day ``until``: no forecast learns from days after it."""
    known = x.index <= pd.Timestamp(until) - pd.Timedelta(days=HORIZON)
    return x[known], y[known]


def select_after(x, y, until, days):
    """Return the samples of forecasts that were made after the day ``until``, for so many days."""
    start = pd.Timestamp(until)
    later = (x.index > start) & (x.index <= start + pd.Timedelta(days=days))
    return x[later], y[later]


def make_model():
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(50, min_samples_leaf=3, random_state=0)
